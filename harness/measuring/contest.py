"""Timing the entrants of a case against each other, and judging what they computed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from harness.attention import Cache, Case
from harness.inputs.sets import make_inputs
from harness.interface import Implementation, Inputs
from harness.jobs import Job, RowMessage
from harness.measuring.attempts import attempt, failed_by
from harness.measuring.cold_cache import make_flush
from harness.measuring.cuda import ThrottleWatch, TorchDriver, host_call_s
from harness.measuring.device_clock import make_clock
from harness.measuring.guards import RoundGuard, make_canary
from harness.measuring.modes import ModeCall, make_call
from harness.measuring.plausibility import plausible
from harness.measuring.rounds import MIN_ROUNDS, Contestant, RoundsResult, Timing, run_rounds
from harness.measuring.unmasking import faults_of_repeat
from harness.numerics.judgement import Reference
from harness.rows import Row, Status, failed
from harness.settings import MeasureSettings
from harness.worker import Channel

SHADOW = "shadow of the baseline"


@dataclass(frozen=True)
class Entrant:
    """An implementation that is ready to be timed.

    Args:
        index: Its place in ``Job.specs``.
        row: What is known so far.
        calls: By input set.
        judged: Outputs on the first input set that have been found right.
    """

    index: int
    row: Row
    implementation: Implementation
    calls: tuple[ModeCall, ...]
    judged: Mapping[str, Tensor]

    @property
    def name(self) -> str:
        return self.row.implementation


@dataclass(frozen=True)
class Setting:
    """What all implementations of the case share.

    Args:
        reference: Exact results for the first input set.
        reference_s: What they took.
        started: Reading of ``time.perf_counter`` at the start.
    """

    job: Job
    input_sets: tuple[Inputs, ...]
    reference: Reference
    reference_s: float
    channel: Channel
    started: float


def hold_contest(setting: Setting, entrants: Sequence[Entrant]) -> None:
    """Rounds of all entrants, then their final rows.

    One that fails in the rounds leaves with a row of its own, and the rounds start again.
    """
    remaining = list(entrants)
    while remaining:
        in_hand: list[str] = [""]
        results: list[RoundsResult] = []
        problem = attempt(lambda: results.append(_rounds(setting, remaining, in_hand)))  # noqa: B023
        baseline = _baseline(setting.job, remaining)
        if problem is None:
            for entrant in remaining:
                _finish(setting, entrant, results[0], baseline)
            return
        name = baseline if in_hand[0] in ("", SHADOW) else in_hand[0]
        culprit = next(entrant for entrant in remaining if entrant.name == name)
        row = failed_by(culprit.row, problem, "the timed rounds")
        setting.channel.send(RowMessage(culprit.index, row, is_final=True))
        remaining.remove(culprit)


def restore_threads(case: Case) -> None:
    """Give torch the case's number of threads again, should an implementation have changed it."""
    if torch.get_num_threads() != case.threads:
        torch.set_num_threads(case.threads)


def _baseline(job: Job, entrants: Sequence[Entrant]) -> str:
    names = [entrant.name for entrant in entrants]
    return job.baseline if job.baseline in names else names[0]


def _rounds(setting: Setting, entrants: Sequence[Entrant], in_hand: list[str]) -> RoundsResult:
    job, case = setting.job, setting.job.case
    original = next(e for e in entrants if e.name == _baseline(job, entrants))
    index_of = {e.name: e.index for e in entrants} | {SHADOW: original.index}

    def enter(name: str) -> None:
        in_hand[0] = name
        setting.channel.enter(index_of.get(name))
        restore_threads(case)

    flush = make_flush(case.device) if case.cache is Cache.COLD else None
    enter(SHADOW)
    runners = [(e.name, e, e.calls) for e in entrants]
    runners.append((SHADOW, original, _shadow_calls(setting, original)))
    contestants = [
        Contestant(
            name,
            tuple(call.run for call in calls),
            make_clock(case.device, entrant.implementation, flush),
        )
        for name, entrant, calls in runners
    ]
    rng = np.random.default_rng([case.seed, job.pass_index, int(case.key, 16) % 2**32])
    guard = RoundGuard(make_canary(case))
    if case.device == "cuda":
        guard.was_throttled = ThrottleWatch(TorchDriver()).round_was_throttled
    return run_rounds(contestants, original.name, SHADOW, _settings(job), rng, guard, enter)


def _settings(job: Job) -> MeasureSettings:
    """With cold caches each sample is one call: a second one would find them warm."""
    if job.case.cache is Cache.COLD:
        return replace(job.measure, min_sample_s=0.0)
    return job.measure


def _shadow_calls(setting: Setting, original: Entrant) -> tuple[ModeCall, ...]:
    """The baseline once more, on inputs of the same values in memory of their own."""
    case = setting.job.case
    copies = (make_inputs(case, index) for index in range(len(setting.input_sets)))
    return tuple(make_call(original.implementation, case, inputs) for inputs in copies)


def _finish(setting: Setting, entrant: Entrant, result: RoundsResult, baseline: str) -> None:
    """Send the final row: samples, guards, and the timed outputs judged."""
    setting.channel.enter(entrant.index)
    timing = result.timings[entrant.name]
    final = [_timed_row(setting, entrant, result, is_baseline=entrant.name == baseline)]

    def step() -> None:
        if setting.job.case.device == "cuda":
            host_s = host_call_s(entrant.calls[0].run, TorchDriver())
            final[0] = replace(final[0], host_call_s=host_s)
        ceiling = setting.job.ceilings.fastest_product(setting.job.case)
        final[0] = plausible(_rechecked(setting, entrant, timing, final[0]), ceiling)

    problem = attempt(step)
    if problem is not None:
        final[0] = failed_by(final[0], problem, "the last check")
    setting.channel.send(RowMessage(entrant.index, final[0], is_final=True))


def _timed_row(setting: Setting, entrant: Entrant, result: RoundsResult, is_baseline: bool) -> Row:
    timing, guard = result.timings[entrant.name], result.guard
    row = replace(
        entrant.row,
        samples=timing.samples(result.calls_per_sample),
        warmup_s=timing.warmup_s,
        calls_s=(entrant.row.first_call_s or 0.0) + timing.warmup_s + timing.bursts_s,
        stop_reason=result.stop_reason,
        flags=(*entrant.row.flags, *_timing_flags(timing), *guard.flags()),
        flagged_rounds=guard.flagged_rounds(),
        wall_s=time.perf_counter() - setting.started,
    )
    if not is_baseline:
        return row
    shadow = result.timings[SHADOW]
    return replace(
        row,
        is_baseline=True,
        shadow=shadow.samples(result.calls_per_sample),
        canary_times_s=tuple(guard.canary_times_s),
        calls_s=(row.calls_s or 0.0) + shadow.warmup_s + shadow.bursts_s,
    )


def _timing_flags(timing: Timing) -> tuple[str, ...]:
    flags = [] if timing.is_steady else ["no_steady_state"]
    rounds = len(timing.times_s)
    if rounds < MIN_ROUNDS:
        flags.append(f"few_rounds: {rounds} ({MIN_ROUNDS} needed for an interval)")
    return tuple(flags)


def _rechecked(setting: Setting, entrant: Entrant, timing: Timing, row: Row) -> Row:
    """The row, ``incorrect`` when the last timed result on the first input set is not right."""
    outputs = entrant.calls[0].named_outputs(timing.last_on_first_set)
    contract = entrant.implementation.contract(setting.job.case)
    began = time.perf_counter()
    reasons = faults_of_repeat(setting.reference, entrant.judged, outputs, contract)
    judging_s = (row.judging_s or 0.0) + time.perf_counter() - began
    row = replace(row, judging_s=judging_s)
    if not reasons:
        return row
    return failed(row, Status.INCORRECT, *(f"last timed call: {reason}" for reason in reasons))
