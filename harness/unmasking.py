"""Calls that unmask implementations which compute only when they think that somebody looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from harness.attention import Case, Mode
from harness.interface import AttentionInputs, Contract, Inputs
from harness.modes import ModeCall, output_name
from harness.numerics import Reference, judge


def unmasked(
    case: Case,
    calls: Sequence[ModeCall],
    inputs: Inputs,
    reference: Reference,
    contract: Contract,
) -> tuple[str, ...]:
    """What is wrong with two more calls on the first inputs; empty: nothing.

    Who hands out the result of an earlier call is wrong right after a call on other inputs; who
    remembers results by the inputs' address is wrong when their values change in place (not tried
    in mode ``backward``, whose graph holds the old values rightly).
    """
    calls[-1].run()
    again = calls[0].named_outputs(calls[0].run())
    reasons = judge(reference, again, contract).reasons
    if reasons:
        return tuple(f"call after one on other inputs: {reason}" for reason in reasons)
    if case.mode is Mode.BACKWARD:
        return ()
    with _negated(inputs):
        negated = calls[0].named_outputs(calls[0].run())
    name = output_name(case)
    reasons = judge(reference, {name: -negated[name]}, contract).reasons
    return tuple(f"call on inputs changed in place: {reason}" for reason in reasons)


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
