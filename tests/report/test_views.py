"""Terminal, Markdown, CSV and Parquet show one analysis, each time in the same bytes."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from harness import report
from harness.analysis.decide import Constraints, decide
from harness.errors import InvalidValueError, StoreError
from harness.report.answer import answer
from harness.report.content import Content, configured_margin, content_of, header_lines
from harness.report.files import MissingExtraError, flat_table
from harness.report.gaps import failure_table
from harness.report.markdown import all_tables
from harness.report.tables import choice_table, fixed_axes
from harness.rows import Status
from tests.report.runs import ENVIRONMENT, rich_rows, rich_run
from tests.synthetic import Truth, draw_rows, make_case, store_run


def printed(draw: object, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    draw(console)  # type: ignore[operator]
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_header_gives_the_control_the_machine_and_what_was_measured(content: Content) -> None:
    control, machine, rows = header_lines(content)
    assert control.endswith("margin 3 %")
    assert "of 40 shadow comparisons rejected, noise floor" in control
    assert machine == "Imaginary 9000, 2 of 4 cores, 8.00 GiB, torch 2.13.0, Linux 6.1"
    assert rows.startswith("20 cases in 2 passes; rows: 160 ok, 40 unsupported, 40 crashed")
    assert rows.endswith("rounds ended by: rounds 160")


def test_an_untrusted_run_says_so_in_its_first_line(tmp_path: Path) -> None:
    case = make_case(64)
    rows = [
        replace(row, shadow=replace(row.shadow, times_s=tuple(
            tuple(1.3 * t for t in calls) for calls in row.shadow.times_s)))
        for row in draw_rows([case], Truth({"naive": {case.id: 1.0}}, passes=3))
    ]  # fmt: skip
    run = store_run(tmp_path, rows)
    assert next(header_lines(content_of(run))).startswith("UNTRUSTED: the baseline differs")
    assert printed(lambda c: report.render_terminal(run, c), 100).startswith("UNTRUSTED")


def test_flags_are_counted_by_kind(tmp_path: Path) -> None:
    case = make_case(64)
    rows = [replace(row, flags=("noise: 7 of 30", "no_steady_state"))
            for row in draw_rows([case], Truth({"naive": {case.id: 1.0}}))]  # fmt: skip
    lines = list(header_lines(content_of(store_run(tmp_path, rows))))
    assert lines[-1] == "flags: no_steady_state in 1 case, noise in 1 case"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_a_terminal_of_any_width_shows_whole_figures(run: Path, width: int) -> None:
    text = printed(lambda console: report.render_terminal(run, console), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "naive" in text
    assert "36.3 µs" in text or "36." in text


@pytest.mark.parametrize("width", [80, 120])
def test_names_with_options_and_long_words_are_whole_at_usual_widths(
    tmp_path: Path, width: int
) -> None:
    name, rival = "block_softmax_32[block=16]", "block_softmax_32[block=32,bold]"
    rows = [
        replace(row, implementation={"naive": name, "sdpa": rival}.get(row.implementation,
                                                                      row.implementation))
        for row in rich_rows()
    ]  # fmt: skip
    run = store_run(tmp_path, rows, environment=ENVIRONMENT)
    for draw in (
        lambda console: report.render_terminal(run, console),
        lambda console: report.render_compare(run, None, console),
        lambda console: report.render_decision(run, console, constraints=Constraints()),
        lambda console: report.render_prediction(run, console, {
            "hidden_size": 1024, "num_heads": 16, "seq_len": 700}),
    ):  # fmt: skip
        text = printed(draw, width)
        words = text.split()
        assert any(name in word for word in words)
        assert any(rival in word for word in words)
        assert max(map(len, text.splitlines())) <= width
        assert not any(word.endswith("float32-") for word in words)
        assert "…" not in text


def test_the_terminal_shows_choices_times_and_reasons(run: Path) -> None:
    text = printed(lambda console: report.render_terminal(run, console), 130)
    for expected in ("What to use", "sdpa = sdpa_flash", "Time per call", "crashed",
                     "<xformers> | can't *do* this", "768 is no multiple of 10"):  # fmt: skip
        assert expected in text


def test_a_reason_that_holds_for_the_whole_run_names_no_case(content: Content) -> None:
    table = failure_table(content)
    assert table is not None
    cases = {line[0].text: line[3].text for line in table.lines}
    assert cases == {"xformers": "all 20 cases", "broken": "all 20 cases"}
    first = content.cells["case_id"].iloc[0]
    is_other = (content.cells["implementation"] != "broken") | (content.cells["case_id"] == first)
    table = failure_table(replace(content, cells=content.cells[is_other]))
    assert table is not None
    assert {line[0].text: line[3].text for line in table.lines}["broken"] == first


def test_implementations_that_can_do_nothing_here_have_no_column(content: Content) -> None:
    times = all_tables(content)[1]
    assert "xformers" not in times.columns
    assert "broken" in times.columns


def test_what_all_cases_share_is_said_once(content: Content) -> None:
    assert fixed_axes(content) == (
        "batch 1, float32, mask none, scope attention, forward, gaussian inputs, warm cache, cpu, "
        "2 threads"
    )
    assert choice_table(content).columns[:3] == ("hidden", "heads", "length")


def test_report_twice_gives_identical_bytes(run: Path, tmp_path: Path) -> None:
    formats = ["md", "csv", "parquet"]
    first = report.write_reports(run, formats, tmp_path / "one")
    second = report.write_reports(run, formats, tmp_path / "two")
    assert [path.name for path in first] == ["report.md", "report.csv", "rows.parquet"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()


def test_reports_go_into_the_run_unless_told_otherwise(tmp_path: Path) -> None:
    run = rich_run(tmp_path)
    assert report.write_reports(run, ["md"]) == [run / "report.md"]


def test_markdown_tables_have_as_many_cells_in_every_line(run: Path, tmp_path: Path) -> None:
    (path,) = report.write_reports(run, ["md"], tmp_path)
    tables = path.read_text().split("\n## ")[1:]
    for table in tables:
        lines = [line.replace("\\|", "") for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1
    assert "**sdpa = sdpa\\_flash**" in path.read_text()


def test_the_csv_holds_every_cell_and_reads_back(
    run: Path, content: Content, tmp_path: Path
) -> None:
    (path,) = report.write_reports(run, ["csv"], tmp_path)
    read = pd.read_csv(path, keep_default_na=False, na_values=[""])
    assert len(read) == len(content.cells) == len(flat_table(content))
    assert set(read["mask"]) == {"none"}
    naive = read[(read["implementation"] == "sdpa") & (read["seq_len"] == 2048)]
    assert set(naive["verdict"]) == {"faster"}
    assert read.loc[read["in_best_set"], "status"].eq("ok").all()


def test_parquet_holds_every_row_with_its_samples(
    run: Path, content: Content, tmp_path: Path
) -> None:
    (path,) = report.write_reports(run, ["parquet"], tmp_path)
    read = pd.read_parquet(path)
    assert len(read) == len(content.rows)
    row = read[read["implementation"] == "naive"].iloc[0]
    assert len(row["times_s"]) == 30
    assert len(row["times_s"][0]) == 3


def test_a_missing_extra_is_named_with_its_remedy_and_the_rest_is_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError) as caught:
        report.write_reports(run, ["html", "parquet", "md"], tmp_path)
    assert "pip install 'mha-bench[report]'" in str(caught.value)
    assert "pip install 'mha-bench[parquet]'" in str(caught.value)
    assert (tmp_path / "report.md").exists()
    assert not (tmp_path / "report.html").exists()


def test_wrong_formats_runs_and_folders_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"format.*'pdf'.*html, md, csv, parquet"):
        report.write_reports(run, ["pdf"])
    with pytest.raises(StoreError, match="no run at"):
        report.write_reports(tmp_path / "absent", ["md"])
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't write"):
        report.write_reports(run, ["md"], tmp_path / "file")


def test_the_margin_is_that_of_the_configuration(tmp_path: Path, run: Path) -> None:
    assert configured_margin(run) == 0.03
    (tmp_path / "config.yaml").write_text("measure:\n  margin: 0.01\n")
    assert configured_margin(tmp_path) == 0.01
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    assert configured_margin(tmp_path) == 0.03


def test_a_run_of_failures_only_is_reported_too(tmp_path: Path) -> None:
    rows = [row for row in rich_rows() if row.status is not Status.OK]
    run = store_run(tmp_path, rows, environment=ENVIRONMENT)
    text = printed(lambda console: report.render_terminal(run, console), 120)
    assert "nothing ran" in text
    assert "No shadow comparison was made" in text
    assert report.render_compare(run, None, Console(file=io.StringIO())) == []
    assert report.write_reports(run, ["md", "csv", "html"])


def test_a_run_without_rows_is_reported_as_such(tmp_path: Path) -> None:
    run = store_run(tmp_path, [])
    assert "nothing was measured" in printed(lambda c: report.render_terminal(run, c), 100)
    assert report.write_reports(run, ["md", "csv", "html"])


def test_compare_within_a_run_gives_verdicts_and_breaches(run: Path) -> None:
    breaches: list[str] = []

    def draw(console: Console) -> None:
        breaches.extend(report.render_compare(run, None, console, fail_on=["slower"]))

    text = printed(draw, 140)
    assert "Against naive" in text
    assert "faster" in text
    assert all(line.startswith("slower: ") for line in breaches)
    assert any("chunked" in line for line in breaches)


def test_compare_of_two_runs_shows_changes_first(run: Path, tmp_path: Path) -> None:
    other = rich_run(tmp_path, "other", seed=1)
    text = printed(lambda console: report.render_compare(run, other, console), 140)
    assert "Unpaired" in text
    assert "120 cells in both runs" in text
    assert "new / old" in text
    with pytest.raises(InvalidValueError, match="fail-on"):
        report.render_compare(run, other, Console(file=io.StringIO()), fail_on=["sometimes"])


def test_the_answer_names_choice_flip_price_certainty_and_gaps(content: Content) -> None:
    sentences = answer(content, decide(content.rows))
    text = " ".join(sentence.text for sentence in sentences)
    assert sentences[0].text.startswith("Use naive up to length 256, sdpa")
    for expected in ("As one choice, use", "is faster up to length about", "of extra memory",
                     "How sure: of 20 cases", "broken crashed in every case",
                     "1 point of the plan left out"):  # fmt: skip
        assert expected in text
    known = set(content.cells["case_key"])
    assert all(set(sentence.case_keys) <= known for sentence in sentences)
    assert all(sentence.case_keys for sentence in sentences[:-1])


def test_the_flips_in_the_answer_are_those_of_the_laws(content: Content) -> None:
    """hidden 768, heads 8: 1e-4 + 1.0752e-7 n = 6.4e-10 n^2 at n about 489."""
    found = [
        s.text for s in answer(content, decide(content.rows)) if "hidden 768, heads 8)" in s.text
    ]
    low, high = found[0].split("[")[1].split("]")[0].split(", ")
    assert int(low) <= 489 <= int(high)


def test_the_answer_of_a_run_in_which_nothing_is_right_says_so(tmp_path: Path) -> None:
    rows = [row for row in rich_rows() if row.status is not Status.OK]
    content = content_of(store_run(tmp_path, rows))
    (first, *_) = answer(content, decide(content.rows))
    assert first.text == "Nothing can be recommended: no implementation ran rightly."
