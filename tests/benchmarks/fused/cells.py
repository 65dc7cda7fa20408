"""One cell of a table: its rounds, and what they say in each of the machine's two states.

Machines with AMX have been seen to load matrix tiles four times slower for seconds, while all else
stayed fast. A product that loads tiles is timed before each round and after the last; a round
counts as quiet when both neighbours are close to the best that was seen, as slow otherwise. The two
never enter the same figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.statistics.intervals import NOTHING_KNOWN, effect_of, interval

Array: TypeAlias = npt.NDArray[np.float64]

# Of the best calibration: slow states have been seen at 0.3, and a product that wakes its unit
# after other work at 0.65.
QUIET_SHARE = 0.5


@dataclass(frozen=True)
class Cell:
    """What the rounds of one cell measured.

    Args:
        group: Cells of one group have targets together.
        times_s: Seconds of a call by contestant, the least of each round's burst.
        calibration: FLOP/s of the tile-loading product, before each round and after the last.
        scale: What a figure needs beside times, such as numbers of pairs.
    """

    table: str
    group: str
    label: str
    threads: int
    times_s: Mapping[str, list[float]]
    calibration: list[float]
    scale: Mapping[str, float] = field(default_factory=dict)

    def rounds(self, is_quiet: Array) -> Mapping[str, Array]:
        """Times by contestant, of the chosen rounds."""
        return {name: np.array(times)[is_quiet] for name, times in self.times_s.items()}


Figure: TypeAlias = Callable[[Cell, Mapping[str, Array]], Array]
"""Logarithms, round by round, of a figure that times give."""


@dataclass(frozen=True)
class Estimate:
    """A figure over rounds, with its 95 % interval (infinite under six rounds).

    Args:
        calibration: Median FLOP/s of the tile-loading product in these rounds.
    """

    value: float
    low: float
    high: float
    rounds: int
    calibration: float

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{self.value:.2f} [?]"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def best_calibrations(cells: Iterable[Cell]) -> dict[int, float]:
    """The best calibration by number of threads."""
    best: dict[int, float] = {}
    for cell in cells:
        best[cell.threads] = max(best.get(cell.threads, 0.0), *cell.calibration)
    return best


def quiet_rounds(cell: Cell, best: float) -> Array:
    """For each round, whether the machine was quiet before and after it."""
    seen = np.array(cell.calibration)
    return np.minimum(seen[:-1], seen[1:]) >= QUIET_SHARE * best


def estimate(cell: Cell, figure: Figure, chosen: Array) -> Estimate | None:
    """The figure over the chosen rounds; None without any."""
    if not chosen.any():
        return None
    logs = figure(cell, cell.rounds(chosen))
    effect = effect_of([logs])
    found = interval(effect) if len(logs) else NOTHING_KNOWN
    seen = np.array(cell.calibration)
    near = np.minimum(seen[:-1], seen[1:])[chosen]
    value, low, high = (math.exp(x) for x in (effect.centre, found.low, found.high))
    return Estimate(value, low, high, len(logs), float(np.median(near)))


def ratio_of(base: str, own: str) -> Figure:
    """Time of ``base`` by that of ``own``."""

    def logs(cell: Cell, times: Mapping[str, Array]) -> Array:
        found: Array = np.log(times[base]) - np.log(times[own])
        return found

    return logs
