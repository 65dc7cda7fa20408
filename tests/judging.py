"""Running an attention function on a case and having its outputs judged, for tests of the judge."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.attention import Case
from harness.inputs.sets import make_inputs
from harness.interface import Contract, Implementation
from harness.numerics.judgement import Judgement, judge, make_reference
from harness.tensors import Inputs


def outputs_of(implementation: Implementation, case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """What an implementation returns for the inputs, by name, gradients included where due."""
    leaves = inputs.leaves
    for leaf in leaves.values():
        leaf.requires_grad_(case.mode.has_gradients)
    output = implementation.prepare(case, inputs)()
    outputs = {"y" if "x" in leaves else "o": output.detach()}
    if case.mode.has_gradients:
        gradients = torch.autograd.grad(output, list(leaves.values()), inputs.grad_output)
        outputs |= {f"d{name}": g for name, g in zip(leaves, gradients, strict=True)}
    return outputs


def judged(
    implementation: Implementation,
    case: Case,
    change: Callable[[dict[str, Tensor]], None] = lambda outputs: None,
    index: int = 0,
) -> Judgement:
    """The judgement on an implementation's outputs, which ``change`` may spoil in place."""
    inputs = make_inputs(case, index)
    outputs = outputs_of(implementation, case, inputs)
    change(outputs)
    return judge(make_reference(case, inputs), outputs, contract_of(implementation, case))


def contract_of(implementation: Implementation, case: Case) -> Contract:
    return implementation.contract(case)
