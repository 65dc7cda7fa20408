"""The rounds: all calls of a cell in random order, by the harness's own engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from harness.attention import Allocator
from harness.measuring.allocator import set_for_timing
from harness.measuring.clock import CpuClock
from harness.measuring.guards import RoundGuard
from harness.measuring.rounds import Contestant, run_rounds
from harness.settings import MeasureSettings
from tests.benchmarks.fused.cells import Cell, quiet_rounds

Runs: TypeAlias = tuple[Callable[[], Any], ...]
"""A call on each of the input sets."""

_TILE_PRODUCT_SIZE = 512  # a fraction of a millisecond, mostly tile loads from L2
_BEST_SOUGHT_FOR_S = 0.3
_ENOUGH_QUIET_ROUNDS = 10  # six would do for an interval if none depended on the one before


@dataclass(frozen=True)
class Place:
    """Where a cell stands in the tables; see ``Cell``."""

    table: str
    group: str
    label: str
    threads: int


@dataclass
class Engine:
    """Measures cells.

    Args:
        budget_s: Seconds of rounds for each.
        precision: Half-width of the ratio's interval that ends the rounds earlier.
        patience: Budgets that are spent, at most, while quiet rounds are too few.
        best: Best calibration so far, by number of threads.
    """

    budget_s: float
    precision: float = 0.02
    patience: float = 15.0
    best: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_for_timing(Allocator.REUSE)

    def measure(
        self, place: Place, runs: Mapping[str, Runs], scale: Mapping[str, float] | None = None
    ) -> Cell:
        """Rounds of all calls until enough of them were quiet; the first is the baseline."""
        torch.set_num_threads(place.threads)
        product = _TileProduct()
        if place.threads not in self.best:
            self.best[place.threads] = product.best(_BEST_SOUGHT_FOR_S)
        cell = Cell(*vars(place).values(), {name: [] for name in runs}, [], scale or {})
        started, batch = time.perf_counter(), 0
        while batch == 0 or time.perf_counter() - started < self.patience * self.budget_s:
            self._add_rounds(cell, runs, product, batch)
            batch += 1
            self.best[place.threads] = max(self.best[place.threads], *cell.calibration)
            if quiet_rounds(cell, self.best[place.threads]).sum() >= _ENOUGH_QUIET_ROUNDS:
                break
        return cell

    def _add_rounds(
        self, cell: Cell, runs: Mapping[str, Runs], product: _TileProduct, batch: int
    ) -> None:
        guard = RoundGuard(product)
        settings = MeasureSettings(
            budget_s=self.budget_s,
            precision=self.precision,
            margin=0.0,
            warmup_min_s=0.02 if batch else 0.05,
            warmup_max_s=0.5,
        )
        contestants = [Contestant(name, calls, CpuClock()) for name, calls in runs.items()]
        rng = np.random.default_rng(batch)
        result = run_rounds(contestants, next(iter(runs)), "", settings, rng, guard)
        guard.begin_round()  # one more calibration, after the last round
        del cell.calibration[-1:]  # that after the last batch stands in its place
        cell.calibration.extend(product.flop / time_s for time_s in guard.canary_times_s)
        for name, timing in result.timings.items():
            cell.times_s[name].extend(min(burst) for burst in timing.times_s)


class _TileProduct:
    """A bfloat16 matrix product: on AMX its speed is that of tile loads."""

    flop = 2 * _TILE_PRODUCT_SIZE**3

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        square = (_TILE_PRODUCT_SIZE, _TILE_PRODUCT_SIZE)
        self._matrix = torch.randn(square, generator=generator).bfloat16()
        self._out = torch.empty_like(self._matrix)

    def __call__(self) -> None:
        with torch.no_grad():
            torch.mm(self._matrix, self._matrix, out=self._out)

    def best(self, for_s: float) -> float:
        """FLOP/s, the best of calls over some time."""
        deadline = time.perf_counter() + for_s
        times: list[float] = []
        while not times or time.perf_counter() < deadline:
            started = time.perf_counter()
            self()
            times.append(time.perf_counter() - started)
        return self.flop / min(times)
