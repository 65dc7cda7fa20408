"""Where the choice flips: lengths at which one implementation overtakes another.

Between two measured lengths the log ratio is taken as straight in the log of the length, give or
take what its bend at the neighbours allows. The interval of a crossover holds every length at which
the two may be equally fast; it never reaches past a measured length where the order is sure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.cells import cells_of
from harness.analysis.lines import Line, lines_along
from harness.analysis.pairs import CasePairs, pairs_by_case
from harness.analysis.winners import winners
from harness.statistics.intervals import ALPHA, interval

_GRID = 64


@dataclass(frozen=True)
class Crossover:
    """``below`` is faster up to about ``estimate``, ``above`` from there on.

    Args:
        axis: What is crossed along, usually ``seq_len``.
        fixed: The line that it lies on.
        low: Lower end of the interval; None: open, below the smallest measured value.
        high: Upper end; None: open, above the largest measured value.
        cases: Keys of the measured cases next to it; what a refinement measures between.
    """

    axis: str
    fixed: Mapping[str, Any]
    below: str
    above: str
    estimate: float
    low: float | None
    high: float | None
    cases: tuple[str, str]

    @property
    def is_open(self) -> bool:
        return self.low is None or self.high is None


def crossovers(
    rows: pd.DataFrame, axis: str = "seq_len", alpha: float = ALPHA, margin: float = 0.0
) -> list[Crossover]:
    """Every crossover along ``axis`` between implementations that are among the best somewhere.

    Args:
        margin: Crossovers of two that never differ by more than this on their line are left out.
    """
    pairs = pairs_by_case(rows)
    best = dict(zip(*(winners(rows)[name] for name in ("case_key", "best")), strict=True))
    found: list[Crossover] = []
    for line in lines_along(cells_of(rows), axis):
        contenders = sorted({name for _, key in line.points for name in best.get(key, ())})
        for one, other in itertools.combinations(contenders, 2):
            found += _along(line, pairs, (one, other), alpha, margin)
    return found


@dataclass(frozen=True)
class _Band:
    """Log ratio of two implementations along a line, each an array over its points."""

    x: np.ndarray[Any, np.dtype[np.float64]]  # log of the axis
    centre: np.ndarray[Any, np.dtype[np.float64]]
    low: np.ndarray[Any, np.dtype[np.float64]]
    high: np.ndarray[Any, np.dtype[np.float64]]
    keys: tuple[str, ...]

    def bend(self) -> float:
        """How far the truth may lie from a straight piece, by the bends seen at the points."""
        if len(self.x) < 3:
            return math.inf
        slopes = np.diff(self.centre) / np.diff(self.x)
        second = 2 * np.diff(slopes) / (self.x[2:] - self.x[:-2])
        return float(np.max(np.abs(second)) * np.max(np.diff(self.x)) ** 2 / 8)


def _along(
    line: Line,
    pairs: Mapping[str, CasePairs],
    names: tuple[str, str],
    alpha: float,
    margin: float,
) -> Iterator[Crossover]:
    band = _band(line, pairs, names, alpha)
    if band is None or np.max(np.abs(band.centre)) <= math.log1p(margin):
        return
    for left in range(len(band.x) - 1):
        before, after = band.centre[left], band.centre[left + 1]
        if before * after >= 0:
            continue
        share = before / (before - after)
        low, high = _range(band, left)
        yield Crossover(
            axis=line.axis,
            fixed=line.fixed,
            below=names[0] if before < 0 else names[1],
            above=names[1] if before < 0 else names[0],
            estimate=math.exp(band.x[left] + share * (band.x[left + 1] - band.x[left])),
            low=low,
            high=high,
            cases=(band.keys[left], band.keys[left + 1]),
        )


def _band(
    line: Line, pairs: Mapping[str, CasePairs], names: tuple[str, str], alpha: float
) -> _Band | None:
    points = []
    for value, key in line.points:
        effect = pairs[key].effect(*names, mode_floor=0.0)
        if effect is not None and value > 0:
            shown = interval(effect, alpha)
            # In a noisy case an order is sure only beyond what the case can show.
            doubt = math.log1p(pairs[key].margin(0.0))
            low, high = shown.low - doubt, shown.high + doubt
            points.append((math.log(value), effect.centre, low, high, key))
    if len(points) < 2:
        return None
    x, centre, lows, highs, keys = zip(*points, strict=True)
    return _Band(np.array(x), np.array(centre), np.array(lows), np.array(highs), tuple(keys))


def _range(band: _Band, left: int) -> tuple[float | None, float | None]:
    """Where around the piece that starts at ``left`` the two may be equal, in the axis' values."""
    sign = float(np.sign(band.centre[left]))
    downward = range(left + 1, -1, -1)
    upward = range(left, len(band.x))
    return _edge(band, downward, sign), _edge(band, upward, -sign)


def _edge(band: _Band, path: Sequence[int], sign: float) -> float | None:
    """Where on the way outward the ratio surely gets ``sign``; None: nowhere.

    Args:
        path: Positions of points, from beyond the crossing outward.
    """
    near = (band.low if sign > 0 else -band.high)[list(path)]
    sure = next((i for i in range(1, len(path)) if math.isfinite(near[i]) and near[i] > 0), None)
    if sure is None:
        return None
    outer, inner = path[sure], path[sure - 1]
    bend = band.bend()
    if not math.isfinite(bend) or not math.isfinite(near[sure - 1]):
        return math.exp(band.x[outer])
    shares = np.linspace(0, 1, _GRID)  # 0 at the sure point, 1 at the next one inward
    bounds = near[sure] + shares * (near[sure - 1] - near[sure])
    # At a measured point there is no bend; in the middle of a piece it is at its largest.
    is_sure = bounds > 4 * bend * shares * (1 - shares)
    last = int(np.argmin(is_sure)) - 1 if not is_sure.all() else _GRID - 1
    return math.exp(band.x[outer] + shares[max(last, 0)] * (band.x[inner] - band.x[outer]))
