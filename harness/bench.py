"""Measuring one case in a fresh process: the only place that knows the order of the steps.

::

    inputs, reference -> per implementation: load, prepare, first call, error against float64
                      -> paired rounds of those that are right -> last outputs checked again
                      -> rows

The functions here are targets of ``harness.worker`` and report through its channel. An exception of
an implementation ends as the status of its row (``attempts`` is the one place that catches
broadly); the others of the case go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from harness import allocator, cost
from harness.attempts import attempt, failed_by
from harness.attention import Case, Mode
from harness.clock import make_clock
from harness.guards import RoundGuard, make_canary
from harness.inputs import make_inputs
from harness.interface import Implementation, Inputs
from harness.jobs import Job, RowMessage
from harness.modes import ModeCall, make_call
from harness.numerics import Reference, judge, make_reference
from harness.plausibility import plausible
from harness.registry import load_implementation
from harness.rounds import Contestant, RoundsResult, Timing, run_rounds
from harness.rows import Row, Status, failed
from harness.settings import ImplementationSpec
from harness.worker import Channel

SHADOW = "shadow of the baseline"
_INPUT_SETS_BYTES = 2 * 2**30


@dataclass(frozen=True)
class _Entrant:
    """An implementation that is ready to be timed: its row so far and its calls by input set."""

    index: int
    row: Row
    implementation: Implementation
    calls: tuple[ModeCall, ...]


@dataclass(frozen=True)
class _Bench:
    """What all implementations of the case share."""

    job: Job
    input_sets: tuple[Inputs, ...]
    reference: Reference
    channel: Channel
    started: float


def measure_case(job: Job, channel: Channel) -> None:
    """Measure all implementations of a case side by side; sends one final row for each."""
    rows = [_blank_row(job, spec) for spec in job.specs]
    channel.enter(None)
    try:
        bench = _set_up(job, channel)
    except Exception as error:
        for index, row in enumerate(rows):
            channel.send(RowMessage(index, failed_by(row, error, "making the inputs"), True))
        return
    entrants = [
        entrant
        for index, row in enumerate(rows)
        if (entrant := _admit(bench, index, row)) is not None
    ]
    _time(bench, entrants)


def _set_up(job: Job, channel: Channel) -> _Bench:
    started = time.perf_counter()
    _set_process(job.case)
    torch.set_grad_enabled(False)
    input_sets = tuple(make_inputs(job.case, index) for index in range(_num_input_sets(job)))
    reference = make_reference(job.case, input_sets[0])
    return _Bench(job, input_sets, reference, channel, started)


def _set_process(case: Case) -> None:
    allocator.set_for_timing(case.allocator)
    torch.set_num_threads(case.threads)
    torch.manual_seed(case.seed)


def _num_input_sets(job: Job) -> int:
    """As many as fit in 2 GiB; one in mode ``backward``, where each would hold a graph."""
    if job.case.mode is Mode.BACKWARD:
        return 1
    fitting = _INPUT_SETS_BYTES // max(1, cost.input_bytes(job.case))
    return max(1, min(job.measure.input_sets, fitting))


def _blank_row(job: Job, spec: ImplementationSpec) -> Row:
    flop_per_s, bytes_per_s = job.ceilings.of(job.case)
    return Row(
        run_id=job.run_id,
        case=job.case,
        implementation=spec.name,
        options=spec.options,
        pass_index=job.pass_index,
        status=Status.ERROR,
        process=job.process,
        flop_count=cost.flop_count(job.case),
        min_bytes=cost.min_bytes(job.case),
        ceiling_flop_per_s=flop_per_s,
        ceiling_bytes_per_s=bytes_per_s,
        environment_key=job.environment_key,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        repro=job.repro.get(spec.name, ""),
    )


def _admit(bench: _Bench, index: int, row: Row) -> _Entrant | None:
    """Load, prepare, call once and judge; None when the row has found its end."""
    bench.channel.enter(index)
    known: list[Row] = [row]
    ready: list[_Entrant] = []

    def step() -> None:
        implementation = load_implementation(bench.job.specs[index])
        calls, first_call_s, result = _first_call(bench, implementation)
        known[0] = _described(known[0], bench, implementation, first_call_s)
        judgement = judge(
            bench.reference, calls[0].named_outputs(result), implementation.contract(bench.job.case)
        )
        status = Status.INCORRECT if judgement.reasons else Status.OK
        known[0] = replace(
            known[0], errors=judgement.errors, status=status, reasons=judgement.reasons
        )
        ready.append(_Entrant(index, known[0], implementation, calls))

    problem = attempt(step)
    _restore_threads(bench.job.case)
    if problem is not None:
        known[0] = failed_by(known[0], problem, "the first call")
    is_ready = problem is None and known[0].status is Status.OK
    bench.channel.send(RowMessage(index, known[0], is_final=not is_ready))
    return ready[0] if is_ready else None


def _first_call(
    bench: _Bench, implementation: Implementation
) -> tuple[tuple[ModeCall, ...], float, Any]:
    first = make_call(implementation, bench.job.case, bench.input_sets[0])
    sample = make_clock(bench.job.case.device, implementation).sample(first.run, 1)
    others = (make_call(implementation, bench.job.case, s) for s in bench.input_sets[1:])
    return (first, *others), sample.time_s, sample.result


def _described(row: Row, bench: _Bench, implementation: Implementation, first_call_s: float) -> Row:
    case, inputs = bench.job.case, bench.input_sets[0]
    changed = torch.get_num_threads() != case.threads
    flags = (f"changed_threads: to {torch.get_num_threads()}; restored",) if changed else ()
    return replace(
        row,
        first_call_s=first_call_s,
        implementation_version=implementation.version(),
        kernel=implementation.kernel(case, inputs),
        notes=tuple(implementation.notes(case)),
        flags=flags,
    )


def _restore_threads(case: Case) -> None:
    if torch.get_num_threads() != case.threads:
        torch.set_num_threads(case.threads)


def _time(bench: _Bench, entrants: Sequence[_Entrant]) -> None:
    """Rounds of all entrants; one that fails in them leaves, and the rounds start again."""
    remaining = list(entrants)
    while remaining:
        in_hand: list[str] = [""]
        results: list[RoundsResult] = []
        problem = attempt(lambda: results.append(_rounds(bench, remaining, in_hand)))  # noqa: B023
        if problem is None:
            for entrant in remaining:
                _finish(bench, entrant, results[0], baseline=_baseline(bench.job, remaining))
            return
        name = in_hand[0] if in_hand[0] not in ("", SHADOW) else _baseline(bench.job, remaining)
        culprit = next(entrant for entrant in remaining if entrant.row.implementation == name)
        row = failed_by(culprit.row, problem, "the timed rounds")
        bench.channel.send(RowMessage(culprit.index, row, is_final=True))
        remaining.remove(culprit)


def _baseline(job: Job, entrants: Sequence[_Entrant]) -> str:
    names = [entrant.row.implementation for entrant in entrants]
    return job.baseline if job.baseline in names else names[0]


def _rounds(bench: _Bench, entrants: Sequence[_Entrant], in_hand: list[str]) -> RoundsResult:
    job, case = bench.job, bench.job.case
    baseline = _baseline(job, entrants)
    index_of = {entrant.row.implementation: entrant.index for entrant in entrants}
    index_of[SHADOW] = index_of[baseline]

    def enter(name: str) -> None:
        in_hand[0] = name
        bench.channel.enter(index_of.get(name))
        _restore_threads(case)

    contestants = [_contestant(e.row.implementation, e, e.calls, case) for e in entrants]
    original = next(e for e in entrants if e.row.implementation == baseline)
    in_hand[0] = SHADOW
    contestants.append(_contestant(SHADOW, original, _shadow_calls(bench, original), case))
    seed = [case.seed, job.pass_index, int(case.key, 16) % 2**32]
    guard = RoundGuard(make_canary(case))
    rng = np.random.default_rng(seed)
    return run_rounds(contestants, baseline, SHADOW, job.measure, rng, guard, enter)


def _contestant(name: str, entrant: _Entrant, calls: Sequence[ModeCall], case: Case) -> Contestant:
    clock = make_clock(case.device, entrant.implementation)
    return Contestant(name, tuple(call.run for call in calls), clock)


def _shadow_calls(bench: _Bench, original: _Entrant) -> list[ModeCall]:
    """The baseline once more, on inputs of the same values in memory of their own."""
    case = bench.job.case
    copies = (make_inputs(case, index) for index in range(len(bench.input_sets)))
    return [make_call(original.implementation, case, inputs) for inputs in copies]


def _finish(bench: _Bench, entrant: _Entrant, result: RoundsResult, baseline: str) -> None:
    """Send the final row: samples, guards, and the last timed output judged again."""
    bench.channel.enter(entrant.index)
    name = entrant.row.implementation
    timing = result.timings[name]
    is_baseline = name == baseline
    shadow = result.timings[SHADOW].samples(result.calls_per_sample)
    row = replace(
        entrant.row,
        samples=timing.samples(result.calls_per_sample),
        warmup_s=timing.warmup_s,
        stop_reason=result.stop_reason,
        flags=(*entrant.row.flags, *_timing_flags(timing), *result.guard.flags()),
        flagged_rounds=result.guard.flagged_rounds(),
        is_baseline=is_baseline,
        canary_times_s=tuple(result.guard.canary_times_s) if is_baseline else (),
        wall_s=time.perf_counter() - bench.started,
    )
    if is_baseline:
        row = replace(row, shadow=shadow)
    row = plausible(_rechecked(bench, entrant, timing, row))
    bench.channel.send(RowMessage(entrant.index, row, is_final=True))


def _timing_flags(timing: Timing) -> tuple[str, ...]:
    flags = [] if timing.is_steady else ["no_steady_state"]
    if len(timing.times_s) < 6:
        flags.append(f"few_rounds: {len(timing.times_s)} (6 needed for an interval)")
    return tuple(flags)


def _rechecked(bench: _Bench, entrant: _Entrant, timing: Timing, row: Row) -> Row:
    """The row, ``incorrect`` when a timed result is not right for its own inputs.

    Judged are the last timed call, and one more on the same inputs right after a call on others:
    who hands out the result of an earlier call is wrong there.
    """
    assert timing.last is not None, "there has been at least one round"
    input_set, result = timing.last
    call = entrant.calls[input_set]
    reference = bench.reference
    if input_set:
        reference = make_reference(bench.job.case, bench.input_sets[input_set])
    contract = entrant.implementation.contract(bench.job.case)
    reasons = judge(reference, call.named_outputs(result), contract).reasons
    if not reasons:
        entrant.calls[input_set - 1].run()
        reasons = judge(reference, call.named_outputs(call.run()), contract).reasons
    if not reasons:
        return row
    found = tuple(f"in the timed calls (input set {input_set}): {reason}" for reason in reasons)
    return failed(row, Status.INCORRECT, *found)
