"""Decisions, predictions and trends as people and programs read them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from harness import report
from harness.analysis.decide import Constraints, decide
from harness.analysis.workload import read_workload
from harness.report.charts import log_ticks, near_ticks
from harness.report.content import Content
from harness.report.decision import decision_record
from tests.report.runs import rich_run


def console(width: int = 130) -> Console:
    return Console(file=io.StringIO(), width=width)


def text_of(used: Console) -> str:
    return used.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_decision_starts_with_what_to_use(run: Path) -> None:
    used = console()
    decision = report.render_decision(run, used, constraints=Constraints())
    text = text_of(used)
    assert decision.best[0] in ("sdpa", "sdpa_flash")
    assert "Use naive up to length 256, sdpa beyond" in text
    assert "What each choice costs" in text
    assert "Crossovers" in text
    assert "More heads at the same hidden size" in text


def test_constraints_and_gaps_of_the_workload_are_said(run: Path) -> None:
    used = console()
    decision = report.render_decision(
        run,
        used,
        constraints=Constraints(max_memory_bytes=2**25),
        workload=read_workload("seq_len=128:3,seq_len=5000:1"),
    )
    text = text_of(used)
    assert "naive in 8 cases (memory over the limit)" in text
    assert "25 % of the workload is not covered" in text
    assert set(decision.cells["state"]) <= {"clear", "tie", "unresolved"}


def test_cases_without_the_baseline_still_have_their_best(run: Path) -> None:
    """The baseline itself is over the limit in the largest cases."""
    used = console()
    decision = report.render_decision(run, used, constraints=Constraints(max_memory_bytes=2**25))
    longest = decision.cells[decision.cells["seq_len"] == 2048]
    assert all({"sdpa", "sdpa_flash"} & set(best) for best in longest["best"])


def test_a_decision_is_plain_json_too(content: Content) -> None:
    record = json.loads(json.dumps(decision_record(decide(content.rows))))
    assert set(record) == {"best", "choices", "crossovers", "open", "uncovered"}
    known = set(content.cells["case_key"])
    assert all(set(choice["cases"]) <= known for choice in record["choices"])
    assert all(set(flip["cases"]) <= known for flip in record["crossovers"])


def test_a_prediction_shows_interval_record_and_reach(run: Path) -> None:
    used = console(170)
    predictions = report.render_prediction(
        run, used, {"hidden_size": 1024, "num_heads": 16, "seq_len": 6000}
    )
    text = text_of(used)
    assert "Predicted for b1-h1024x16-s6000-float32-cpu2" in text
    assert "extrapolated: seq_len 6000 (measured 128 to 2048)" in text
    assert "no prediction" in text  # xformers never ran
    by_name = {p.implementation: p for p in predictions}
    assert by_name["sdpa"].low is not None
    assert by_name["xformers"].why.startswith("0 measured cells")


def test_a_trend_of_runs_names_each(run: Path, tmp_path: Path) -> None:
    other = rich_run(tmp_path / "later", "rich", seed=2)
    used = console(200)
    report.render_trend([run, other], used)
    text = text_of(used)
    assert "No step among 2 runs." in text
    assert "Over time" in text


@pytest.mark.parametrize(
    ("low", "high", "base", "expected"),
    [
        (0.4, 3.0, 10, [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),
        (1e-5, 8e-3, 10, [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]),
        (1e-6, 1e3, 10, [10.0**k for k in range(-6, 4)]),
        (2.0**10, 2.0**14, 2, [2.0**k for k in range(10, 15)]),
        (1.0, 1.0, 10, [1.0, 2.0, 5.0]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_round_and_few(
    low: float, high: float, base: int, expected: list[float]
) -> None:
    assert log_ticks(low, high, base) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.83, 1.18, [0.8, 0.9, 1.0, 1.1, 1.2]),
        (4.9e-4, 1.03e-3, [4e-4, 6e-4, 8e-4, 1e-3, 1.2e-3]),
        (1.0, 1.0, [1.0]),
        (0.4, 3.0, [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),
    ],
)
def test_ticks_of_a_narrow_range_are_round_and_evenly_spaced(
    low: float, high: float, expected: list[float]
) -> None:
    assert near_ticks(low, high) == pytest.approx(expected)
