"""Paired rounds: every implementation of a case timed side by side, in random order, many times.

A round calls every contestant once, in a fresh random order. Noise that lasts longer than a round
hits all of them alike and cancels in the ratios, which is why A-then-B schedules call equal
functions different in up to half of the comparisons where this one does in 5 %. The baseline takes
part twice: its shadow, a second name with inputs of its own, shows what the machine does to two
equal functions.

In each round a contestant makes an untimed priming call, then a burst of timed samples, whose
minimum is the round's figure; all samples are kept. Rounds end at the first of a few fixed looks
where precision suffices or a strict interval decides, or when the budget is spent; never at the
first significant result, which would double or triple the error rate.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.measuring.clock import Clock
from harness.measuring.guards import RoundGuard
from harness.rows import Samples
from harness.settings import MeasureSettings
from harness.statistics.intervals import order_statistic_interval, paired_differences

LOOKS = (20, 30, 45, 68, 100, 150, 200)
MIN_ROUNDS = 6  # the fewest whose order statistics hold a 95 % interval (min to max, 96.9 %)
_SLOW_CALL_S = 1.0  # from here on the first look is at MIN_ROUNDS
_STRICT_ALPHA = 0.001
_OVERRUN = 3.0  # even MIN_ROUNDS are cut when this many budgets are spent
_PRIMING_S = 0.01
_STEADY = 0.02


@dataclass(frozen=True)
class Contestant:
    """One name in the rounds.

    Args:
        runs: The timed call on each of the input sets, which the rounds rotate through.
        clock: Clock of the device, and of the implementation where it has a hook.
    """

    name: str
    runs: tuple[Callable[[], Any], ...]
    clock: Clock


@dataclass
class Timing:
    """What the rounds know of one contestant.

    Args:
        call_s: Estimate of one call, from the warm-up.
        warmup_s: Time spent warming up.
        is_steady: Whether the warm-up ended in a steady state.
        bursts_s: Time spent in bursts so far, priming and dropped rounds included.
        last_on_first_set: Result of the last timed call on the first input set.
    """

    call_s: float
    warmup_s: float
    is_steady: bool
    burst_calls: int = 1
    bursts_s: float = 0.0
    times_s: list[tuple[float, ...]] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    last_on_first_set: Any = None

    def samples(self, calls_per_sample: int) -> Samples:
        return Samples(tuple(self.times_s), tuple(self.orders), calls_per_sample)


@dataclass(frozen=True)
class RoundsResult:
    """All rounds of one case in one process.

    Args:
        timings: By contestant name, shadow included.
        calls_per_sample: K, the same for all contestants.
        stop_reason: ``precision``, ``verdict``, ``budget`` or ``rounds``.
    """

    timings: dict[str, Timing]
    calls_per_sample: int
    stop_reason: str
    guard: RoundGuard


def run_rounds(
    contestants: Sequence[Contestant],
    baseline: str,
    shadow: str,
    settings: MeasureSettings,
    rng: np.random.Generator,
    guard: RoundGuard,
    enter: Callable[[str], None] = lambda name: None,
) -> RoundsResult:
    """Warm up and time all contestants until a stopping rule holds.

    Args:
        baseline: Name of the contestant that the others are compared with.
        shadow: Name under which the baseline takes part again.
        enter: Told the name of the contestant that is about to run, so that a watcher outside
            knows whom to blame for a hang.
    """
    timings = {}
    for contestant in contestants:
        timings[contestant.name] = warm_up(contestant, settings, enter)
    calls = calls_per_sample([t.call_s for t in timings.values()], settings.min_sample_s)
    for timing in timings.values():
        timing.burst_calls = burst_length(timing.call_s * calls, settings)
    started = time.perf_counter()
    stop_reason = ""
    while not stop_reason:
        _one_round(contestants, timings, calls, rng, guard, enter)
        if guard.must_drop_round():
            for timing in timings.values():
                timing.times_s.pop()
                timing.orders.pop()
            continue
        elapsed = time.perf_counter() - started
        stop_reason = _stop_reason(timings, baseline, shadow, settings, elapsed)
    return RoundsResult(timings, calls, stop_reason, guard)


def warm_up(
    contestant: Contestant,
    settings: MeasureSettings,
    enter: Callable[[str], None] = lambda name: None,
) -> Timing:
    """Call until two halves of the recent calls agree within 2 %, at least three times."""
    times: list[float] = []
    started = time.perf_counter()
    while True:
        run = contestant.runs[len(times) % len(contestant.runs)]
        enter(contestant.name)
        times.append(contestant.clock.sample(run, 1).time_s)
        spent_s = time.perf_counter() - started
        if spent_s + times[-1] > settings.warmup_max_s:
            return Timing(float(np.median(times[-5:])), spent_s, is_steady=_is_steady(times))
        if len(times) >= 3 and spent_s >= settings.warmup_min_s and _is_steady(times):
            return Timing(float(np.median(times[len(times) // 2 :])), spent_s, is_steady=True)


def _is_steady(times: list[float]) -> bool:
    recent = times[len(times) // 3 :]
    half = len(recent) // 2
    if half == 0:
        return False
    earlier, later = np.median(recent[:half]), np.median(recent[half:])
    return bool(abs(later / earlier - 1.0) <= _STEADY)


def calls_per_sample(call_times_s: Sequence[float], min_sample_s: float) -> int:
    """K, so that a sample of the quickest contestant is not shorter than ``min_sample_s``."""
    quickest_s = max(min(call_times_s), 1e-9)
    return max(1, math.ceil(min_sample_s / quickest_s * (1 - 1e-9)))


def burst_length(sample_s: float, settings: MeasureSettings) -> int:
    """Timed samples per burst: as many as fit, 3 to ``burst_calls``; 1 for a long call."""
    if sample_s > settings.max_burst_s:
        return 1
    return min(settings.burst_calls, max(3, int(settings.max_burst_s / sample_s)))


def _one_round(
    contestants: Sequence[Contestant],
    timings: dict[str, Timing],
    calls: int,
    rng: np.random.Generator,
    guard: RoundGuard,
    enter: Callable[[str], None],
) -> None:
    gc.collect(0)
    gc.disable()
    guard.begin_round()
    try:
        for order, index in enumerate(rng.permutation(len(contestants))):
            contestant = contestants[int(index)]
            timing = timings[contestant.name]
            started = time.perf_counter()
            timing.times_s.append(_burst(contestant, timing, calls, enter))
            timing.bursts_s += time.perf_counter() - started
            timing.orders.append(order)
        enter("")
    finally:
        guard.end_round()
        gc.enable()


def _burst(
    contestant: Contestant, timing: Timing, calls: int, enter: Callable[[str], None]
) -> tuple[float, ...]:
    input_set = len(timing.times_s) % len(contestant.runs)
    run, clock = contestant.runs[input_set], contestant.clock
    sample_s = timing.call_s * calls
    for _ in range(max(1, min(timing.burst_calls, int(_PRIMING_S / max(sample_s, 1e-9))))):
        enter(contestant.name)
        clock.sample(run, calls)
    times = []
    if input_set == 0:
        timing.last_on_first_set = None  # its memory is free again, as it was the round before
    for _ in range(timing.burst_calls):
        enter(contestant.name)
        sample = clock.sample(run, calls)
        times.append(sample.time_s)
    if input_set == 0:
        timing.last_on_first_set = sample.result
    return tuple(times)


def _stop_reason(
    timings: dict[str, Timing],
    baseline: str,
    shadow: str,
    settings: MeasureSettings,
    elapsed_s: float,
) -> str:
    base = timings[baseline]
    rounds = len(base.times_s)
    if rounds >= settings.max_rounds:
        return "rounds"
    looks = (MIN_ROUNDS, 10, *LOOKS) if base.call_s > _SLOW_CALL_S else LOOKS
    if rounds in looks and settings.precision > 0:
        rivals = [name for name in timings if name not in (baseline, shadow)] or [shadow]
        reason = _reason_at_look(timings, base, rivals, settings)
        if reason:
            return reason
    enough = rounds >= MIN_ROUNDS or elapsed_s >= _OVERRUN * settings.budget_s
    return "budget" if enough and elapsed_s >= settings.budget_s else ""


def _reason_at_look(
    timings: dict[str, Timing], base: Timing, rivals: Sequence[str], settings: MeasureSettings
) -> str:
    decided_by = set()
    for name in rivals:
        ratios = paired_differences(timings[name].times_s, base.times_s)
        interval = order_statistic_interval(ratios, 0.05)
        if interval.half_width <= settings.precision:
            decided_by.add("precision")
        elif _is_decided(ratios, settings.margin):
            decided_by.add("verdict")
        else:
            return ""
    return "verdict" if "verdict" in decided_by else "precision"


def _is_decided(ratios: Any, margin: float) -> bool:
    """Whether the 99.9 % interval lies wholly beyond the margin or wholly inside it."""
    strict = order_statistic_interval(ratios, _STRICT_ALPHA)
    edge = np.log1p(margin)
    beyond = strict.low > edge or strict.high < -edge
    inside = strict.low > -edge and strict.high < edge
    return bool(beyond or inside)
