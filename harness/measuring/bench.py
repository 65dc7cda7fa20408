"""Measuring one case in a fresh process: the only place that knows the order of the steps.

::

    inputs, reference -> per implementation: load, prepare, first call, error against float64 (of
                         the log-sum-exp too, where one is offered, and of a call that feeds some
                         rows back, where only that certifies a layer's source)
                      -> paired rounds of those that are right -> last outputs checked again
                      -> rows

The functions here are targets of ``harness.worker`` and report through its channel. An exception of
an implementation ends as the status of its row (``attempts`` is the one place that catches
broadly); the others of the case go on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness import cost
from harness.attention import Case, Mode
from harness.inputs.sets import make_inputs
from harness.interface import Implementation, mask_form_of
from harness.jobs import Job, RowMessage, blank_row
from harness.measuring import allocator
from harness.measuring.attempts import attempt, failed_by
from harness.measuring.contest import Entrant, Setting, hold_contest, restore_threads
from harness.measuring.device_clock import make_clock
from harness.measuring.fed_back import judge_fed_back
from harness.measuring.log_sum_exp import attended_with_lse
from harness.measuring.modes import ModeCall, make_call
from harness.measuring.unmasking import faults_of_repeat, unmasked
from harness.numerics.judgement import judge, make_reference
from harness.plugins.registry import load_implementation
from harness.rows import Row, Status
from harness.worker import Channel

_INPUT_SETS_BYTES = 2 * 2**30


def measure_case(job: Job, channel: Channel) -> None:
    """Measure all implementations of a case side by side; sends one final row for each."""
    rows = [blank_row(job, spec) for spec in job.specs]
    channel.enter(None)
    try:
        setting = _set_up(job, channel)
    except Exception as error:
        for index, row in enumerate(rows):
            channel.send(RowMessage(index, failed_by(row, error, "making the inputs"), True))
        return
    entrants = [
        entrant
        for index, row in enumerate(rows)
        if (entrant := _admit(setting, index, row)) is not None
    ]
    hold_contest(setting, entrants)


def _set_up(job: Job, channel: Channel) -> Setting:
    started = time.perf_counter()
    _set_process(job.case)
    torch.set_grad_enabled(False)
    input_sets = tuple(make_inputs(job.case, index) for index in range(_num_input_sets(job)))
    began = time.perf_counter()
    reference = make_reference(job.case, input_sets[0])
    reference_s = time.perf_counter() - began
    return Setting(job, input_sets, reference, reference_s, channel, started)


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


def _admit(setting: Setting, index: int, row: Row) -> Entrant | None:
    """Load, prepare, call once and judge; None when the row has found its end."""
    setting.channel.enter(index)
    known: list[Row] = [row]
    ready: list[Entrant] = []

    def step() -> None:
        implementation = load_implementation(setting.job.specs[index])
        calls, first_call_s, result = _first_call(setting, implementation)
        known[0] = _described(known[0], setting, implementation, first_call_s)
        # a copy: an implementation may reuse the memory of what it returned
        outputs = {n: o.detach().clone() for n, o in calls[0].named_outputs(result).items()}
        known[0] = _judged(known[0], setting, implementation, calls, outputs)
        ready.append(Entrant(index, known[0], implementation, calls, outputs))

    problem = attempt(step)
    restore_threads(setting.job.case)
    if problem is not None:
        known[0] = failed_by(known[0], problem, "the first call")
    is_ready = problem is None and known[0].status is Status.OK
    setting.channel.send(RowMessage(index, known[0], is_final=not is_ready))
    return ready[0] if is_ready else None


def _judged(
    row: Row,
    setting: Setting,
    implementation: Implementation,
    calls: Sequence[ModeCall],
    outputs: Mapping[str, Tensor],
) -> Row:
    """The row with its errors, ``ok`` or ``incorrect``."""
    case, reference = setting.job.case, setting.reference
    contract = implementation.contract(case)
    began = time.perf_counter()
    with_lse = attended_with_lse(implementation, case, setting.input_sets[0])
    judgement = judge(reference, {**with_lse, **outputs}, contract)
    fed_back = judge_fed_back(implementation, case, reference, contract)
    judging_s = time.perf_counter() - began
    reasons = judgement.reasons + fed_back.reasons
    if not reasons and with_lse:
        repeat = faults_of_repeat(reference, outputs, {"o": with_lse["o"]}, contract)
        reasons = tuple(f"call with log-sum-exp: {reason}" for reason in repeat)
    if not reasons:
        reasons = unmasked(case, calls, setting.input_sets[0], reference, outputs, contract)
    status = Status.INCORRECT if reasons else Status.OK
    return replace(
        row,
        errors={**judgement.errors, **fed_back.errors},
        status=status,
        reasons=reasons,
        reference_s=setting.reference_s,
        judging_s=judging_s,
    )


def _first_call(
    setting: Setting, implementation: Implementation
) -> tuple[tuple[ModeCall, ...], float, Any]:
    first = make_call(implementation, setting.job.case, setting.input_sets[0])
    sample = make_clock(setting.job.case.device, implementation).sample(first.run, 1)
    others = (make_call(implementation, setting.job.case, s) for s in setting.input_sets[1:])
    return (first, *others), sample.time_s, sample.result


def _described(
    row: Row, setting: Setting, implementation: Implementation, first_call_s: float
) -> Row:
    case, inputs = setting.job.case, setting.input_sets[0]
    changed = torch.get_num_threads() != case.threads
    flags = (f"changed_threads: to {torch.get_num_threads()}; restored",) if changed else ()
    return replace(
        row,
        first_call_s=first_call_s,
        implementation_version=implementation.version(),
        kernel=implementation.kernel(case, inputs),
        mask_form=mask_form_of(implementation, case).value,
        notes=tuple(implementation.notes(case)),
        flags=flags,
    )
