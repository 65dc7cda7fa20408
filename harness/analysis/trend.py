"""Several runs over time: where did a cell get slower or faster, and stay so?

Runs of different hardware are never put on one line. A step is the split of a series that explains
most of it, called where the two sides differ by more than runs differ anyway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.between import MUST_MATCH, UNPAIRED_MARGIN, differing
from harness.analysis.cells import KEY, cells_of, is_ok

_SPREADS = 4.0
_ENOUGH_RUNS = 4  # fewer don't show by how much runs differ anyway: the margin is doubled


@dataclass(frozen=True, eq=False)  # DataFrames have no single truth to compare by
class RunAt:
    """One run of a trend."""

    name: str
    started_at: str
    rows: pd.DataFrame
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """A cell that changed between two runs and stayed changed.

    Args:
        ratio: Median after over median before.
        before: Last run before the step.
        after: First run after it.
    """

    case_id: str
    implementation: str
    ratio: float
    before: str
    after: str


@dataclass(frozen=True)
class Trend:
    """Runs of one kind of machine in order of time.

    Args:
        runs: Names, oldest first.
        table: Seconds ``[cell, run]``; index ``case_id``, ``implementation``.
        steps: Changes found, the largest first.
        apart: Runs of other hardware, which are not judged here.
        started_at: When each of ``runs`` began.
        environments: What each of ``runs`` was measured with.
        margin: Smallest change that is called a step; twice that with fewer than four runs.
    """

    runs: tuple[str, ...]
    table: pd.DataFrame
    steps: tuple[Step, ...]
    apart: tuple[str, ...]
    started_at: tuple[str, ...] = ()
    environments: tuple[Mapping[str, Any], ...] = ()
    margin: float = UNPAIRED_MARGIN

    @property
    def environment(self) -> Mapping[str, Any]:
        """That of the newest run."""
        return self.environments[-1] if self.environments else {}


def run_at(name: str, rows: pd.DataFrame, environment: Mapping[str, Any]) -> RunAt:
    """A run with the time of its first row."""
    started = min(rows["started_at"], default="")
    return RunAt(name, str(started), rows, environment)


def trend(runs: Sequence[RunAt], margin: float = UNPAIRED_MARGIN) -> Trend:
    """The trend of all runs that share the newest run's hardware."""
    ordered = sorted(runs, key=lambda run: (run.started_at, run.name))
    newest = ordered[-1].environment if ordered else {}
    same = [run for run in ordered if not differing(run.environment, newest, MUST_MATCH)]
    table = _table(same)
    names = tuple(run.name for run in same)
    steps = [
        step
        for key, series in zip(table.index, table.to_numpy(float), strict=True)
        if (step := _step(key, series, names, margin)) is not None
    ]
    steps.sort(key=lambda step: -abs(math.log(step.ratio)))
    apart = tuple(run.name for run in ordered if run not in same)
    return Trend(
        names,
        table,
        tuple(steps),
        apart,
        started_at=tuple(run.started_at for run in same),
        environments=tuple(run.environment for run in same),
        margin=_smallest_step(len(same), margin),
    )


def _smallest_step(num_runs: int, margin: float) -> float:
    return margin if num_runs >= _ENOUGH_RUNS else 2 * margin


def _table(runs: Sequence[RunAt]) -> pd.DataFrame:
    columns = {}
    for run in runs:
        cells = cells_of(run.rows)
        measured = cells[is_ok(cells)].set_index(["case_id", "implementation"])
        columns[run.name] = measured["median_s"].astype("Float64")
    if not columns:
        empty = pd.MultiIndex.from_arrays([[], []], names=["case_id", KEY[1]])
        return pd.DataFrame(index=empty)
    return pd.DataFrame(columns).astype("Float64").sort_index()


def _step(key: Any, series: Any, names: Sequence[str], margin: float) -> Step | None:
    measured = np.flatnonzero(np.isfinite(series))
    logs = np.log(series[measured])
    if len(logs) < 2:
        return None
    splits = range(1, len(logs))
    costs = [_cost(logs[:i]) + _cost(logs[i:]) for i in splits]
    at = 1 + int(np.argmin(costs))
    change = float(np.median(logs[at:]) - np.median(logs[:at]))
    inside = np.concatenate([logs[:at] - np.median(logs[:at]), logs[at:] - np.median(logs[at:])])
    scatter = _SPREADS * float(np.median(np.abs(inside)))
    wide = math.log1p(_smallest_step(len(logs), margin))
    if abs(change) <= max(wide, scatter):
        return None
    before, after = names[measured[at - 1]], names[measured[at]]
    return Step(str(key[0]), str(key[1]), math.exp(change), before, after)


def _cost(logs: Any) -> float:
    return float(np.sum(np.abs(logs - np.median(logs))))
