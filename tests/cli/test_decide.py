"""`mha-bench decide` and `report`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.analysis.decide import decide
from harness.analysis.refine import refinement
from harness.cli import deciding
from harness.store import load
from tests.analysis.laws import run_with_laws
from tests.command import mha_bench_here
from tests.report.runs import rich_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where somebody works: results/ with one run."""
    here = tmp_path_factory.mktemp("work")
    rich_run(here / "results")
    return here


def test_without_a_word_the_newest_run_is_decided(folder: Path) -> None:
    done = mha_bench_here("decide", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Use naive up to length 256, sdpa beyond" in " ".join(done.stdout.split())


def test_constraints_workload_and_cells_are_read(folder: Path) -> None:
    done = mha_bench_here(
        "decide", "results/rich", "hidden_size=768", "num_heads=8", "--max-memory", "32MiB",
        "--max-latency", "5ms", "--workload", "seq_len=2048", cwd=folder,
    )  # fmt: skip
    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr
    assert "Use sdpa or sdpa_flash" in text or "Use sdpa_flash or sdpa" in text
    assert "memory over the limit" in text


def test_a_decision_as_json_is_nothing_but_json(folder: Path) -> None:
    done = mha_bench_here("decide", "--json", cwd=folder)
    assert set(json.loads(done.stdout)) == {"best", "choices", "crossovers", "open", "uncovered"}


def test_a_case_that_was_not_measured_is_predicted(folder: Path) -> None:
    done = mha_bench_here(
        "decide", "--predict", "hidden_size=3072", "num_heads=24", "seq_len=6000", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "Predicted for b1-h3072x24-s6000-float32-cpu2" in text
    assert "extrapolated" in text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["decide", "colour=red"], ["AXIS=VALUE", "colour=red"]),
        (["decide", "a", "b"], ["one run"]),
        (["decide", "absent"], ["no run at"]),
        (["decide", "--predict"], ["AXIS=VALUE of the case"]),
        (["decide", "--max-memory", "much"], ["max-memory", "8GiB"]),
        (["decide", "--workload", "seq_len=x"], ["workload", "whole number"]),
        (["decide", "--workload", "absent.csv"], ["workload", "readable CSV"]),
        (["decide", "--must-support", "causal"], ["must-support", "none"]),
        (["decide", "device=cuda"], ["device", "cpu"]),
        (["report", "--format", "docx"], ["format", "html, md, csv"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_words_are_one_line_with_what_was_expected(
    folder: Path, words: list[str], parts: list[str]
) -> None:
    done = mha_bench_here(*words, cwd=folder)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert all(part in line for part in parts), line


def test_a_report_is_written_in_every_format_that_is_asked_for(
    folder: Path, tmp_path: Path
) -> None:
    done = mha_bench_here("report", "results/rich", "--out", str(tmp_path), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "report.md", "report.csv"}


def test_runs_over_time_are_one_report(folder: Path, tmp_path: Path) -> None:
    rich_run(tmp_path, "later", seed=3)
    runs = (str(folder / "results" / "rich"), str(tmp_path / "later"))
    done = mha_bench_here("report", *runs, "--trend", "--out", str(tmp_path / "out"), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Over time" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "trend.html", "trend.md", "trend.csv",
    }  # fmt: skip
    wrong = mha_bench_here("report", *runs, "--trend", "--format", "png", cwd=folder)
    assert wrong.returncode == 2
    assert "choices: html, md, csv" in wrong.stderr
    alone = mha_bench_here("report", runs[0], "--trend", cwd=folder)
    assert alone.returncode == 2
    assert "at least two runs" in alone.stderr


def test_a_refinement_measures_inside_wide_crossovers_and_what_is_undecided() -> None:
    rows = run_with_laws({"a": (1e-5, 0.0, 1e-9), "b": (3e-4, 2e-7, 0.0)}, noise=0.2)
    decision = decide(rows)
    wanted = refinement(decision)
    assert all(set(point) == {"seq_len"} for point in wanted.new)
    measured = set(decision.cells["seq_len"])
    assert wanted.new
    assert not {point["seq_len"] for point in wanted.new} & measured
    sharp = refinement(decide(run_with_laws({"a": (1e-5, 0.0, 1e-9), "b": (1e-4, 0.0, 2e-9)})))
    assert sharp.is_empty


def test_refining_adds_the_points_to_the_run_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep itself is tested elsewhere; here: which words it gets."""
    from harness.cli import hydra_app

    run = folder / "results" / "rich"
    (run / "config.yaml").write_text(
        "command: ['sweep=default', 'hidden_size=768,2048', 'implementation=[naive,sdpa]',"
        " 'measure.passes=2']\n"
    )
    called: list[list[str]] = []
    monkeypatch.setattr(hydra_app, "run", called.append)
    deciding.decide(run, deciding.Question(), refine=True, as_json=False)
    assert called
    for words in called:
        assert words[:2] == ["sweep=default", "implementation=[naive,sdpa]"]
        assert words[-1] == f"run={run}"
        assert words[-2].startswith("points=[{")
        assert not any(word.startswith("hidden_size") for word in words)
    assert len(load(run)) == 240


def test_a_sharp_answer_needs_no_more_measuring(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.analysis.refine import Refinement

    monkeypatch.setattr(deciding, "refinement", lambda decision: Refinement((), ()))
    deciding.decide(folder / "results" / "rich", deciding.Question(), refine=True, as_json=False)
    assert "nothing to refine" in capsys.readouterr().err
