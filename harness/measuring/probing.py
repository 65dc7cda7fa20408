"""One real call of each pair of implementation and case, judged: the worker's side of a probe."""

from __future__ import annotations

import torch

from harness.attention import Case
from harness.inputs.sets import make_inputs
from harness.jobs import ProbeJob, ProbeMessage
from harness.measuring.attempts import attempt, status_and_reason
from harness.measuring.modes import make_call
from harness.numerics.judgement import judge, make_reference
from harness.plugins.registry import load_implementation
from harness.settings import ImplementationSpec
from harness.worker import Channel


def try_pairs(job: ProbeJob, channel: Channel) -> None:
    """Call every pair once; sends one message for each, in order."""
    for index, (spec, case) in enumerate(job.pairs):
        channel.enter(index)
        channel.send(ProbeMessage(_problem(spec, case)))


def _problem(spec: ImplementationSpec, case: Case) -> str:
    reasons: list[str] = []

    def step() -> None:
        torch.set_num_threads(case.threads)
        torch.manual_seed(case.seed)
        torch.set_grad_enabled(False)
        inputs = make_inputs(case)
        reference = make_reference(case, inputs)
        implementation = load_implementation(spec)
        call = make_call(implementation, case, inputs)
        outputs = call.named_outputs(call.run())
        reasons.extend(judge(reference, outputs, implementation.contract(case)).reasons)

    problem = attempt(step)
    if problem is not None:
        return f"the call raised: {status_and_reason(problem)[1]}"
    return f"the result is wrong: {reasons[0]}" if reasons else ""
