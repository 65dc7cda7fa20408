"""Steps over several runs are found, noise is not, and machines are kept apart."""

from __future__ import annotations

from dataclasses import replace

from harness.analysis.trend import RunAt, run_at, trend
from harness.columns import to_frame
from tests.synthetic import Truth, draw_rows, make_case

CASE = make_case(256)
ENVIRONMENT = {"hardware": {"cpu": {"model": "one"}, "gpus": []}}


def runs_of(*factors: float, model: str = "one") -> list[RunAt]:
    found = []
    for day, factor in enumerate(factors):
        truth = Truth({"naive": {CASE.id: 1e-3}, "sdpa": {CASE.id: factor * 1e-3}}, passes=3)
        rows = [
            replace(row, started_at=f"2025-01-{day + 1:02d}T00:00:00Z")
            for row in draw_rows([CASE], truth, seed=day)
        ]
        environment = {"hardware": {"cpu": {"model": model}, "gpus": []}}
        found.append(run_at(f"run{day}", to_frame(rows), environment))
    return found


def test_a_change_that_stays_is_a_step_with_the_runs_around_it() -> None:
    found = trend(runs_of(1.0, 1.0, 1.0, 1.3, 1.3, 1.3)[::-1])
    (step,) = found.steps
    assert (step.implementation, step.before, step.after) == ("sdpa", "run2", "run3")
    assert 1.2 < step.ratio < 1.4
    assert found.runs == tuple(f"run{i}" for i in range(6))
    assert found.table.shape == (2, 6)


def test_noise_between_runs_is_no_step() -> None:
    assert trend(runs_of(*[1.0] * 8)).steps == ()


def test_runs_of_other_hardware_are_set_apart() -> None:
    other = [replace(run, name="other") for run in runs_of(3.0, model="two")]
    found = trend([*other, *runs_of(1.0, 1.0)])
    assert found.apart == ("other",)
    assert found.steps == ()


def test_a_trend_of_one_run_or_none_has_no_steps() -> None:
    assert trend(runs_of(1.0)).steps == ()
    assert trend([]).runs == ()
