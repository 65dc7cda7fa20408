"""What the cells of a group say together, and whether that reaches the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.fused.cells import Array, Cell, Estimate, estimate, quiet_rounds
from tests.benchmarks.fused.plans import Aim, Table

GEOMETRIC_MEAN, LEAST, LARGEST = "geometric mean", "least", "largest"


@dataclass(frozen=True)
class Line:
    """A cell's figure for one aim, in each state of the machine; None: no round was in it.

    Args:
        base_s: Median time of the aim's base, quiet rounds; slow ones where there are no others.
    """

    cell: Cell
    quiet: Estimate | None
    slow: Estimate | None
    base_s: float
    own_s: float


@dataclass(frozen=True)
class Verdict:
    """One figure of a group.

    Args:
        statistic: Over the cells.
        where: The cell that has it; empty for means.
        slow: The same statistic of the slow rounds.
        quiet_cells: How many of the ``cells`` had quiet rounds.
        is_limit: Whether the target is the most, not the least, that is wanted.
    """

    table: str
    group: str
    figure: str
    statistic: str
    found: Estimate | None
    target: float | None
    where: str = ""
    slow: Estimate | None = None
    quiet_cells: int = 0
    cells: int = 0
    is_limit: bool = False

    @property
    def reached(self) -> str:
        """``yes``, ``no``, with ``?`` where the interval holds the target; empty without one."""
        return "" if self.found is None else reaches(self.found, self.target, self.is_limit)


def reaches(found: Estimate, target: float | None, is_limit: bool = False) -> str:
    """See ``Verdict.reached``."""
    if target is None:
        return ""
    is_reached = found.value <= target if is_limit else found.value >= target
    is_open = found.low < target < found.high
    return ("yes" if is_reached else "no") + ("?" if is_open else "")


def lines_of(cells: Sequence[Cell], aim: Aim, best: Mapping[int, float]) -> list[Line]:
    """Lines of those cells that timed the aim's contestants."""
    able = [cell for cell in cells if {aim.base, aim.own} <= set(cell.times_s)]
    return [_line(cell, aim, quiet_rounds(cell, best[cell.threads])) for cell in able]


def _line(cell: Cell, aim: Aim, is_quiet: Array) -> Line:
    shown = is_quiet if is_quiet.any() else ~is_quiet
    base_s, own_s = (float(np.median(cell.rounds(shown)[n])) for n in (aim.base, aim.own))
    quiet, slow = (estimate(cell, aim.logs, chosen) for chosen in (is_quiet, ~is_quiet))
    return Line(cell, quiet, slow, base_s, own_s)


def verdicts_of(table: Table, group: str, aim: Aim, lines: Sequence[Line]) -> Iterator[Verdict]:
    """Geometric mean and least cell of a group, those that have a target; else the mean."""
    quiet = [line for line in lines if line.quiet is not None]
    slow = [line.slow for line in lines if line.slow is not None]
    found = [line.quiet for line in quiet if line.quiet is not None]

    def verdict(statistic: str, of: Callable[[Sequence[Estimate]], Estimate | None]) -> Verdict:
        is_mean = statistic == GEOMETRIC_MEAN
        target = aim.mean if is_mean else aim.least
        least = of(found)
        where = "" if is_mean or least is None else _place(quiet[found.index(least)].cell)
        counts = (len(quiet), len(lines))
        return Verdict(
            table.name, group, aim.name, statistic, least, target, where, of(slow), *counts
        )

    if aim.mean is not None or aim.least is None:
        yield verdict(GEOMETRIC_MEAN, mean_of)
    if aim.least is not None:
        yield verdict(LEAST, _least)


def _place(cell: Cell) -> str:
    return f"{cell.label}, {cell.threads} {'thread' if cell.threads == 1 else 'threads'}"


def _least(found: Sequence[Estimate]) -> Estimate | None:
    return min(found, key=lambda one: one.value, default=None)


def mean_of(found: Sequence[Estimate]) -> Estimate | None:
    """Geometric mean; the cells' intervals are taken as independent."""
    if not found:
        return None
    centre = float(np.mean([math.log(one.value) for one in found]))
    half_widths = [(math.log(one.high) - math.log(max(one.low, 1e-300))) / 2 for one in found]
    half_width = math.hypot(*half_widths) / len(found)
    low, high = math.exp(centre - half_width), math.exp(min(centre + half_width, 700.0))
    calibration = float(np.median([one.calibration for one in found]))
    rounds = sum(one.rounds for one in found)
    return Estimate(math.exp(centre), low, math.inf if high > 1e300 else high, rounds, calibration)
