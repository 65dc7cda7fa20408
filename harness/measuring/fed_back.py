"""Gradients of a layer's source that only a call of its own can certify: made once, never timed."""

from __future__ import annotations

from harness.attention import Case
from harness.interface import Contract, Implementation
from harness.measuring.modes import make_call
from harness.numerics.judgement import Judgement, Reference, judge


def judge_fed_back(
    implementation: Implementation, case: Case, reference: Reference, contract: Contract
) -> Judgement:
    """The judgement on what some rows fed back become; an empty one where that is not needed."""
    fed_back = reference.fed_back
    if fed_back is None:
        return Judgement({}, ())
    call = make_call(implementation, case, fed_back.inputs)
    outputs = call.named_outputs(call.run())
    wanted = {name: outputs[name].detach() for name in fed_back.reference.expected}
    return judge(fed_back.reference, wanted, contract)
