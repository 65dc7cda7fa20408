"""What to use: constraints and a workload in, the best set and what each choice costs out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.cells import cells_of, is_ok
from harness.analysis.compare import DEFAULT_MARGIN
from harness.analysis.crossover import Crossover, crossovers
from harness.analysis.pairs import CasePairs, control_of_run, pairs_by_case
from harness.analysis.regret import Cell, Regret, best_rule, cell_of, fixed_choices
from harness.analysis.winners import winners
from harness.analysis.workload import Demand, Weights, weigh
from harness.columns import AXES
from harness.errors import InvalidValueError


@dataclass(frozen=True)
class Constraints:
    """What an implementation must keep in a cell to be chosen there.

    Args:
        max_memory_bytes: Largest extra memory of a call.
        max_error_u: Largest scaled error in unit roundoffs, over output and gradients.
        max_latency_s: Longest call.
        must_support: Masks that it must be right on, wherever the run measured them.
        axes: Only cells with these values count, e.g. ``{"device": "cpu", "dtype": "bfloat16"}``.
    """

    max_memory_bytes: float | None = None
    max_error_u: float | None = None
    max_latency_s: float | None = None
    must_support: tuple[str, ...] = ()
    axes: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Exclusion:
    """Why an implementation can't be chosen in some cells."""

    implementation: str
    reason: str
    num_cells: int


@dataclass(frozen=True)
class Decision:
    """The answer.

    Args:
        best: Implementations that can't be told from the best fixed choice, the cheapest first.
        cells: One line per cell: axes, weight, and the best set under the constraints.
        open_cases: Cells without an interval for some ratio: the costs below leave them out, so
            that each is a mean over the same cells. Empty where no cell has all intervals.
        fixed: Regret of each fixed choice, those that cover most first.
        rule: The best two-way rule, where it beats every fixed choice.
        crossovers: Where the choice flips along the length.
        exclusions: What the constraints took out.
        uncovered: Share of the workload that no measured cell stands for, with examples.
    """

    best: tuple[str, ...]
    cells: pd.DataFrame
    open_cases: tuple[str, ...]
    fixed: tuple[Regret, ...]
    rule: Regret | None
    crossovers: tuple[Crossover, ...]
    exclusions: tuple[Exclusion, ...]
    uncovered: float
    uncovered_examples: tuple[str, ...]


def decide(
    rows: pd.DataFrame,
    constraints: Constraints | None = None,
    workload: Iterable[Demand] | None = None,
    margin: float = DEFAULT_MARGIN,
    rule_axis: str = "seq_len",
) -> Decision:
    """Choose from measured rows.

    Args:
        rows: One run, as ``harness.load`` gives it.
        workload: What is really run; every measured cell alike when left out.
        rule_axis: Axis that the two-way rule looks at.

    Raises:
        InvalidValueError: a constraint names an unknown axis, or no cell is left.
    """
    limits = constraints or Constraints()
    chosen = _restricted(rows, limits.axes or {})
    cells = cells_of(chosen)
    allowed, exclusions = _allowed(cells, limits)
    weights = weigh(cells.drop_duplicates("case_key"), workload)
    kept = _kept_rows(chosen, allowed)
    pairs = pairs_by_case(kept)
    measured, left_open = _decided(_cells(cells, allowed, pairs, weights, rule_axis))
    fixed, control = fixed_choices(measured), control_of_run(rows)
    return Decision(
        best=_best_of(fixed, margin),
        cells=_cell_table(cells, winners(kept, margin, control=control), weights),
        open_cases=left_open,
        fixed=tuple(fixed),
        rule=best_rule(measured, rule_axis),
        crossovers=tuple(crossovers(kept, margin=control.margin(margin))),
        exclusions=exclusions,
        uncovered=weights.uncovered,
        uncovered_examples=weights.examples,
    )


def _restricted(rows: pd.DataFrame, axes: Mapping[str, Any]) -> pd.DataFrame:
    for axis, value in axes.items():
        if axis not in AXES:
            raise InvalidValueError("constraint", "the name of an axis", axis, AXES)
        values = sorted(rows[axis].unique().tolist(), key=str)
        rows = rows[rows[axis].astype(str) == str(value)]
        if not len(rows):
            raise InvalidValueError(axis, "a value that the run has", value, values)
    return rows


def _allowed(
    cells: pd.DataFrame, limits: Constraints
) -> tuple[set[tuple[str, str]], tuple[Exclusion, ...]]:
    """Pairs (case, implementation) that may be chosen, and why the others may not."""
    unable = _without_masks(cells, limits.must_support)
    allowed: set[tuple[str, str]] = set()
    reasons: dict[tuple[str, str], int] = {}
    for cell in cells.to_dict("records"):
        name = cell["implementation"]
        found = list(_objections(cell, limits))
        if name in unable:
            found = [f"not right on {unable[name]}"]
        if not found:
            allowed.add((cell["case_key"], name))
        for reason in found:
            reasons[(name, reason)] = reasons.get((name, reason), 0) + 1
    return allowed, tuple(Exclusion(*key, number) for key, number in sorted(reasons.items()))


def _without_masks(cells: pd.DataFrame, masks: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for mask in masks:
        at = cells[cells["mask"] == mask]
        if not len(at):
            measured = sorted(cells["mask"].unique())
            raise InvalidValueError("must-support", "a mask that the run has", mask, measured)
        failing = at.loc[~is_ok(at), "implementation"]
        found |= {str(name): f"mask {mask}" for name in failing}
    return found


def _objections(cell: Mapping[Any, Any], limits: Constraints) -> Iterator[str]:
    if cell["status"] != "ok":
        yield str(cell["status"])
        return
    bounds = (
        ("memory", "peak_alloc_bytes", limits.max_memory_bytes),
        ("error", "worst_scaled_u", limits.max_error_u),
        ("latency", "median_s", limits.max_latency_s),
    )
    for name, column, limit in bounds:
        if limit is None:
            continue
        if pd.isna(cell[column]):
            yield f"{name} was not measured"
        elif cell[column] > limit:
            yield f"{name} over the limit"


def _kept_rows(rows: pd.DataFrame, allowed: set[tuple[str, str]]) -> pd.DataFrame:
    pairs = zip(rows["case_key"], rows["implementation"], strict=True)
    return rows[np.array([pair in allowed for pair in pairs], bool)]


def _cells(
    cells: pd.DataFrame,
    allowed: set[tuple[str, str]],
    pairs: Mapping[str, CasePairs],
    weights: Weights,
    axis: str,
) -> list[Cell]:
    found = []
    for key, group in cells.groupby("case_key", sort=False):
        case = str(key)
        weight = weights.by_case.get(case, 0.0)
        seconds = {
            str(name): float(median_s)
            for name, median_s in zip(group["implementation"], group["median_s"], strict=True)
            if (case, str(name)) in allowed
        }
        if weight > 0 and seconds:
            position = float(group[axis].iloc[0])
            paired = _paired_times(pairs[case], seconds)
            found.append(cell_of(pairs[case], weight, paired, position))
    return found


def _decided(cells: Sequence[Cell]) -> tuple[Sequence[Cell], tuple[str, ...]]:
    """Cells whose ratios all have an interval, and the keys of the others.

    One cell of too few rounds would leave every weighted sum without a bound. Where no cell has
    all intervals, all of them stay: there is nothing better to go by.
    """
    decided = [cell for cell in cells if cell.is_bounded]
    if not decided:
        return cells, ()
    return decided, tuple(cell.key for cell in cells if not cell.is_bounded)


def _paired_times(pairs: CasePairs, seconds: Mapping[str, float]) -> dict[str, float]:
    """Times that stand in the paired ratios: the quickest one's, times each ratio to it."""
    best = min(seconds, key=lambda name: seconds[name])
    times = {}
    for name, plain in seconds.items():
        effect = pairs.effect(name, best, mode_floor=0.0) if name != best else None
        times[name] = plain if effect is None else seconds[best] * math.exp(effect.centre)
    return times


def _best_of(fixed: Sequence[Regret], margin: float) -> tuple[str, ...]:
    """Fixed choices with the best coverage that cost no more than the cheapest: by less than the
    margin for sure, or not told apart.
    """
    if not fixed:
        return ()
    first = fixed[0]
    return tuple(
        regret.policy
        for regret in fixed
        if abs(regret.uncovered - first.uncovered) < 1e-9
        and (regret.low <= first.high or regret.high <= first.low + margin)
    )


def _cell_table(cells: pd.DataFrame, best: pd.DataFrame, weights: Weights) -> pd.DataFrame:
    cases = cells.drop_duplicates("case_key")[["case_key", "case_id", *AXES]]
    table = cases.merge(best, on="case_key", how="left")
    shares = [weights.by_case.get(str(key), 0.0) for key in table["case_key"]]
    filled = {"state": table["state"].fillna("none"), "fastest": table["fastest"].fillna("none")}
    names = [found if isinstance(found, tuple) else () for found in table["best"]]
    return table.assign(
        weight=pd.array(shares, dtype="Float64"), best=pd.Series(names, dtype="object"), **filled
    )
