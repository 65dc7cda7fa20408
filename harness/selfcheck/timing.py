"""The clock and the paired rounds, on work whose time is known or whose ratio is.

Ratios come from work that is repeated n and n (1 + x) times: the injected slowdown is exact.
"""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from harness.measuring.clock import CpuClock
from harness.measuring.guards import RoundGuard
from harness.measuring.rounds import LOOKS, Contestant, run_rounds
from harness.selfcheck.outcome import Effort, Outcome
from harness.settings import MeasureSettings
from harness.statistics.dependence import Array
from harness.statistics.intervals import effect_of, interval, paired_differences
from harness.statistics.verdicts import Verdict, judge

BASE, OTHER = "base", "other"
REPEATS = 100  # pieces of work in a call of 0.1 to 0.5 ms; one more is 1 %
_MATRIX_SIZE = 32
NARROW_ENOUGH = 0.012  # half-width at which 2 % are seen nine times in ten
MARGIN = 0.03
FIRST_LOOK = MeasureSettings(  # always the rounds before the first look, so that widths compare
    budget_s=60.0, precision=0.0, max_rounds=LOOKS[0], warmup_min_s=0.0, warmup_max_s=0.01
)
ONE_SECOND_EACH = MeasureSettings(  # two contestants; ends at +-0.7 %, or where 99.9 % decide
    budget_s=2.0, precision=0.007, margin=0.0, warmup_min_s=0.0, warmup_max_s=0.01
)
_SPINS_S = ((1e-4, 0.010), (1e-3, 0.002), (1e-2, 0.001))


def check_spins(effort: Effort) -> list[Outcome]:
    """A loop that ends at a known time: what does the clock say?"""
    outcomes = []
    for length_s, accepted in _SPINS_S:
        calls = max(1, math.ceil(200e-6 / length_s))
        samples = [CpuClock().sample(partial(spin, length_s), calls) for _ in range(51)]
        error = float(np.median([s.time_s for s in samples])) / length_s - 1
        outcomes.append(
            Outcome(
                f"spin of {length_s * 1e3:g} ms",
                f"error {error:+.2%}",
                f"within {accepted:.1%}",
                abs(error) <= accepted,
            )
        )
    return outcomes


def spin(length_s: float) -> None:
    """Keep the processor busy for a time; a sleep would end 6 to 9 % late."""
    end_ns = time.perf_counter_ns() + int(length_s * 1e9)
    while time.perf_counter_ns() < end_ns:
        pass


@dataclass(frozen=True)
class Comparison:
    """One paired comparison of the other work with the base."""

    differences: Array
    guard: RoundGuard
    measured_s: float  # seconds in timed calls, per implementation

    @property
    def rejects_equality(self) -> bool:
        return not interval(effect_of([self.differences])).contains(0.0)

    @property
    def is_disturbed(self) -> bool:
        """Whether a sweep would call it ``inconclusive(noise)``."""
        return any(flag.startswith("noise") for flag in self.guard.flags())

    @property
    def centre(self) -> float:
        return float(np.median(self.differences))


def compare_once(
    slowdown: float,
    seed: int,
    settings: MeasureSettings = FIRST_LOOK,
    repeats: int = REPEATS,
) -> Comparison:
    """Measure work against the same work made longer by ``slowdown`` with the paired rounds."""
    extra = round(repeats * slowdown)
    contestants = [
        Contestant(BASE, (work(repeats),), CpuClock()),
        Contestant(OTHER, (work(repeats + extra),), CpuClock()),
    ]
    guard = RoundGuard(canary=work(repeats // 2))
    rng = np.random.default_rng(seed)
    result = run_rounds(contestants, BASE, OTHER, settings, rng, guard)
    base, other = (result.timings[name].times_s for name in (BASE, OTHER))
    measured_s = sum(map(sum, base)) * result.calls_per_sample
    return Comparison(paired_differences(other, base), guard, measured_s)


def work(repeats: int) -> Callable[[], Any]:
    """Small products, single-threaded; one takes 1 to 5 us.

    All of it shares its memory: buffers of their own would make equal functions truly different
    by a percent, by where the pages happen to lie.
    """
    matrix, out = _buffers()

    def run() -> None:
        for _ in range(repeats):
            torch.mm(matrix, matrix, out=out)

    return run


@functools.cache
def _buffers() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE, generator=generator)
    return matrix, torch.empty_like(matrix)


def repeats_of_a_millisecond() -> int:
    """Hundreds of pieces that take about a millisecond on this machine."""
    run = work(REPEATS)
    time_s = min(CpuClock().sample(run, 1).time_s for _ in range(20))
    return REPEATS * max(1, round(1e-3 / time_s))


def check_equal_functions(effort: Effort) -> list[Outcome]:
    """One function under two names: how often are they called different?"""
    comparisons = [compare_once(0.0, seed) for seed in range(effort.comparisons)]
    rejected = sum(c.rejects_equality for c in comparisons)
    allowed = allowed_rejections(effort.comparisons)
    return [
        Outcome(
            "A/A, paired rounds",
            f"{rejected} of {effort.comparisons} called different",
            f"at most {allowed}",
            rejected <= allowed,
        )
    ]


def allowed_rejections(comparisons: int) -> int:
    """5 % and the slack of chance: 15 of 200, 27 of 400 (about the 95 % quantile)."""
    return math.floor(0.05 * comparisons + 1.64 * math.sqrt(comparisons * 0.05 * 0.95))


def check_injected_slowdowns(effort: Effort) -> list[Outcome]:
    """2 % more work: seen? And are 2, 5, 10 and 50 % measured as what they are?"""
    return [_power_at_two_percent(effort), *_accuracy(effort)]


def _power_at_two_percent(effort: Effort) -> Outcome:
    """Nine in ten are seen where the machine is quiet enough for it, and none the wrong way.

    A call takes about a millisecond, and an implementation at most a second of measuring.
    """
    num, repeats = effort.slowdowns, repeats_of_a_millisecond()
    comparisons = [compare_once(0.02, 1000 + seed, ONE_SECOND_EACH, repeats) for seed in range(num)]
    seen = sum(c.rejects_equality and c.centre > 0 for c in comparisons)
    wrong = sum(c.rejects_equality and c.centre < 0 for c in comparisons)
    widths = [interval(effect_of([c.differences])).half_width for c in comparisons]
    width, needed = float(np.median(widths)), math.ceil(0.9 * num)
    spent_s = float(np.median([c.measured_s for c in comparisons]))
    figure = (
        f"seen in {seen} of {num}, wrong direction in {wrong}; "
        f"{spent_s:.2g} s of measuring each, intervals of +-{width:.1%}"
    )
    accepted = f"at least {needed} and no wrong direction"
    if width <= NARROW_ENOUGH:
        return Outcome("2 % injected", figure, accepted, seen >= needed and wrong == 0)
    accepted += f" with intervals of +-{NARROW_ENOUGH:.1%}; on a noisier machine the latter"
    return Outcome("2 % injected", figure, accepted, wrong == 0)


_SLOWDOWNS = (0.02, 0.05, 0.10, 0.50)


def _accuracy(effort: Effort) -> Iterator[Outcome]:
    """Slowdowns taken in turn, so that a bad second of the machine meets all of them."""
    num = max(20, effort.comparisons // 10)
    found: dict[float, list[Comparison]] = {slowdown: [] for slowdown in _SLOWDOWNS}
    for seed in range(num):
        for slowdown, comparisons in found.items():
            comparisons.append(compare_once(slowdown, 2000 + seed))
    for slowdown, comparisons in found.items():
        yield _accuracy_at(slowdown, comparisons)


def _accuracy_at(slowdown: float, comparisons: Sequence[Comparison]) -> Outcome:
    """Bias where the machine was quiet, as a sweep judges nothing else; coverage everywhere."""
    num, true = len(comparisons), math.log1p(slowdown)
    quiet = [c for c in comparisons if not c.is_disturbed]
    errors = np.exp([c.centre for c in quiet or comparisons]) - 1 - slowdown
    bias = float(np.median(errors))
    # three standard errors of a median of normal errors: what chance explains
    chance = 3 * 1.25 * float(np.std(errors)) / math.sqrt(len(errors))
    covered = sum(interval(effect_of([c.differences])).contains(true) for c in comparisons)
    needed = math.floor(0.92 * num - 1.64 * math.sqrt(num * 0.92 * 0.08))
    return Outcome(
        f"{slowdown:.0%} injected, accuracy",
        f"median off by {bias * 100:+.2f} points in {len(quiet)} undisturbed of {num}; "
        f"{covered} intervals hold the truth",
        f"within 0.3 points or chance ({chance * 100:.2f}); at least {needed}",
        abs(bias) <= max(0.003, chance) and covered >= needed,
    )


def check_under_load(effort: Effort) -> list[Outcome]:
    """All cores loaded by others: wider intervals, never a wrong direction beyond the margin."""
    with load_on_all_cores():
        equal = [compare_once(0.0, 3000 + seed) for seed in range(effort.loaded_comparisons)]
        slower = [compare_once(0.02, 4000 + seed) for seed in range(effort.loaded_comparisons)]
    num = effort.loaded_comparisons
    rejected = sum(c.rejects_equality for c in equal)
    beyond = sum(
        judge(effect_of([c.differences]), MARGIN) in (Verdict.FASTER, Verdict.SLOWER) for c in equal
    )
    wrong = sum(c.rejects_equality and c.centre < 0 for c in slower)
    seen = sum(c.rejects_equality and c.centre > 0 for c in slower)
    allowed, allowed_wrong = allowed_rejections(num), max(1, num // 40)
    return [
        Outcome(
            "A/A under load on all cores",
            f"{rejected} of {num} called different, {beyond} beyond {MARGIN:.0%}",
            f"at most {allowed}, none beyond",
            rejected <= allowed and beyond == 0,
        ),
        Outcome(
            "2 % injected under load",
            f"seen in {seen}, wrong direction in {wrong} of {num}",
            f"wrong direction in at most {allowed_wrong}",
            wrong <= allowed_wrong,
        ),
    ]


@contextlib.contextmanager
def load_on_all_cores() -> Iterator[None]:
    """One busy process per core, ended on leaving."""
    context = multiprocessing.get_context("spawn")
    cores = multiprocessing.cpu_count()
    loads = [context.Process(target=_burn, daemon=True) for _ in range(cores)]
    for load in loads:
        load.start()
    try:
        time.sleep(0.5)
        yield
    finally:
        for load in loads:
            load.kill()
            load.join()


def _burn() -> None:
    while True:
        spin(1.0)
