"""Calls that unmask implementations which compute only when they think that somebody looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from harness.attention import Case, Mode
from harness.interface import AttentionInputs, Contract, Inputs
from harness.measuring.modes import ModeCall, output_name
from harness.numerics.judgement import Reference, judge


def unmasked(
    case: Case,
    calls: Sequence[ModeCall],
    inputs: Inputs,
    reference: Reference,
    judged: Mapping[str, Tensor],
    contract: Contract,
) -> tuple[str, ...]:
    """What is wrong with two more calls on the first inputs, given right outputs; empty: nothing.

    Who hands out the result of an earlier call is wrong right after a call on other inputs; who
    remembers results by the inputs' address is wrong when their values change in place (not tried
    in mode ``backward``, whose graph holds the old values rightly).
    """
    calls[-1].run()
    again = calls[0].named_outputs(calls[0].run())
    reasons = faults_of_repeat(reference, judged, again, contract)
    if reasons:
        return tuple(f"call after one on other inputs: {reason}" for reason in reasons)
    if case.mode is Mode.BACKWARD:
        return ()
    with _negated(inputs):
        negated = calls[0].named_outputs(calls[0].run())
    name = output_name(case)
    repeat = {name: -negated[name]}
    reasons = faults_of_repeat(reference, judged, repeat, contract)
    return tuple(f"call on inputs changed in place: {reason}" for reason in reasons)


def faults_of_repeat(
    reference: Reference,
    judged: Mapping[str, Tensor],
    repeat: Mapping[str, Tensor],
    contract: Contract,
) -> tuple[str, ...]:
    """What is wrong with outputs that should be those already found right.

    Equal bit by bit is right at once; only what differs is judged again.
    """
    differing = {name: output for name, output in repeat.items() if not _same(output, judged[name])}
    return judge(reference, differing, contract).reasons


def _same(output: Tensor, judged: Tensor) -> bool:
    return output.dtype == judged.dtype and torch.equal(output, judged)


@contextlib.contextmanager
def _negated(inputs: Inputs) -> Iterator[None]:
    """Inputs whose output is exactly the negative: attention is linear in V, a layer odd in x."""
    if isinstance(inputs, AttentionInputs):
        tensors = [inputs.v]
    else:
        tensors = [inputs.x] if inputs.is_self_attention else [inputs.x, inputs.x_kv]

    def negate() -> None:
        with torch.no_grad():
            for tensor in tensors:
                tensor.neg_()

    negate()
    try:
        yield
    finally:
        negate()
