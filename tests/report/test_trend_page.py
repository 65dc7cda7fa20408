"""Several runs as one page: steps marked, machines apart, drawn in a real browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import report
from harness.report.trend_page import trend_records
from harness.report.trends import runs_table, trend_of, trend_sentences
from tests.report.browser import attribute, needs_browser, rendered
from tests.report.runs import ENVIRONMENT
from tests.synthetic import Truth, draw_rows, make_case, store_run

CASES = [make_case(n) for n in (128, 512)]


def stored_runs(folder: Path, *factors: float) -> list[Path]:
    """Runs of one machine, day by day, ``sdpa`` times a factor; and one of another machine."""
    runs = []
    for day, factor in enumerate(factors):
        seconds = {
            name: {c.id: t * c.config.seq_len * 1e-6 for c in CASES}
            for name, t in (("naive", 2.0), ("sdpa", factor))
        }
        rows = [
            replace(row, started_at=f"2025-01-{day + 1:02d}T00:00:00Z")
            for row in draw_rows(CASES, Truth(seconds, passes=3), seed=day)
        ]
        packages = {"torch": "2.12.0" if day < 3 else "2.13.0"}
        software = {**ENVIRONMENT["software"], "packages": packages}  # type: ignore[dict-item]
        environment = {**ENVIRONMENT, "software": software}
        runs.append(store_run(folder, rows, f"day{day + 1}", environment))
    other = {**ENVIRONMENT, "hardware": {"cpu": {"model": "Another"}, "gpus": []}}
    moved = [replace(row, started_at="2024-01-01T00:00:00Z") for row in rows]
    return [*runs, store_run(folder, moved, "elsewhere", other)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return stored_runs(tmp_path_factory.mktemp("runs"), 1.0, 1.0, 1.0, 1.4, 1.4)


@pytest.fixture(scope="module")
def page(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = report.write_trend(runs, ["html"], tmp_path_factory.mktemp("trend"))
    return path


def test_a_step_is_said_with_the_runs_around_it_and_other_machines_are_not_judged(
    runs: list[Path],
) -> None:
    found = trend_of(runs)
    steps = [text for text in trend_sentences(found) if text.startswith("sdpa on ")]
    assert len(steps) == 2
    assert all("from day4 on (day3 was the last before)." in text for text in steps)
    assert trend_sentences(found)[0] == "2 of 4 cells changed and stayed so: 2 slower."
    assert trend_sentences(found)[-1] == "Not judged, other hardware: elsewhere."
    torch = [line[2] for line in runs_table(found).lines]
    assert [(f.text, f.mark) for f in torch[2:4]] == [("2.12.0", ""), ("2.13.0", "bad")]


def test_records_are_the_figures_of_the_table_and_mark_the_first_run_after_a_step(
    runs: list[Path],
) -> None:
    found = trend_of(runs)
    records = trend_records(found)
    assert len(records) == found.table.size
    marked = {(r["name"], r["run"]) for r in records if r["step"]}
    assert marked == {("sdpa", "day4")}
    for record in records:
        seconds = found.table.loc[(record["id"], record["name"]), record["run"]]
        assert record["t"] == pytest.approx(float(seconds), rel=1e-5)


def test_the_page_is_the_same_each_time_and_can_fetch_nothing(
    page: Path, runs: list[Path], tmp_path: Path
) -> None:
    (again,) = report.write_trend(runs, ["html"], tmp_path)
    text = page.read_text(encoding="utf-8")
    assert again.read_text(encoding="utf-8") == text
    assert "default-src 'none'" in text
    assert page.stat().st_size <= 1.5e6


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_all_cells_and_each_case_without_a_complaint(
    page: Path, tmp_path: Path, width: int
) -> None:
    document = rendered(page, tmp_path, width)
    assert attribute(document, "problems") is None
    assert attribute(document, "drawn") == "3"  # all together, and two cases
    assert document.count("aria-roledescription") > 3


@needs_browser
def test_implementations_can_be_left_out_and_nothing_is_wider_than_a_phone(
    page: Path, tmp_path: Path
) -> None:
    script = """
      const root = document.documentElement;
      root.dataset.wide = root.scrollWidth;
      const marks = () => document.querySelectorAll('#together .mark-symbol path').length;
      root.dataset.before = marks();
      document.querySelector('[data-name="naive"]').click();
      await new Promise((done) => setTimeout(done, 1500));
      root.dataset.after = marks();
      document.getElementById('theme').click();
    """
    document = rendered(page, tmp_path, 500, script=script)
    assert attribute(document, "problems") is None
    assert int(attribute(document, "wide") or 0) <= 500
    before, after = int(attribute(document, "before") or 0), int(attribute(document, "after") or 0)
    assert (before, after) == (22, 12)  # 2 cases x 5 runs each, and 2 rings


def test_runs_without_a_common_cell_are_a_page_too(tmp_path: Path) -> None:
    runs = [store_run(tmp_path, [], f"empty{i}", ENVIRONMENT) for i in range(2)]
    (path,) = report.write_trend(runs, ["html"], tmp_path)
    text = path.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "No step among 2 runs." in text
