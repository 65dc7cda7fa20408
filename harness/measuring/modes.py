"""What one timed call does in each mode, made from an implementation's forward pass.

Plug-ins write the forward pass only; training modes add ``torch.autograd.grad``, which returns the
gradients instead of accumulating them into ``.grad``, so that no sum is timed along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.attention import Case, Mode, Scope
from harness.errors import PluginError
from harness.interface import Implementation, Inputs


def output_name(case: Case) -> str:
    """Name of the forward output: ``o`` of attention, ``y`` of a layer."""
    return "o" if case.scope is Scope.ATTENTION else "y"


@dataclass(frozen=True)
class ModeCall:
    """One implementation on one set of inputs.

    Args:
        run: The timed call; what it returns is for ``named_outputs`` only.
        named_outputs: Turns a result of ``run`` into tensors by name: ``o`` or ``y``, and the
            gradients as ``dq``, ``dk``, ``dv`` or ``dx``, ``dx_kv``, ``dw_qkv``, ``dw_o``.
    """

    run: Callable[[], Any]
    named_outputs: Callable[[Any], dict[str, Tensor]]


def make_call(implementation: Implementation, case: Case, inputs: Inputs) -> ModeCall:
    """Prepare an implementation for the case's mode; grad mode is left as the mode needs it.

    Raises:
        PluginError: ``prepare`` returned something that can't be called.
    """
    torch.set_grad_enabled(case.mode.is_training)
    for leaf in inputs.leaves.values():
        leaf.requires_grad_(case.mode.is_training)
    forward = implementation.prepare(case, inputs)
    if not callable(forward):
        raise PluginError(
            f"{implementation.name}.prepare returned {type(forward).__name__}; expected a function"
        )
    if not case.mode.has_gradients:
        name = output_name(case)
        return ModeCall(forward, lambda result: {name: _tensor(implementation, result)})
    return _gradient_call(implementation, case, inputs, forward)


def _gradient_call(
    implementation: Implementation, case: Case, inputs: Inputs, forward: Callable[[], Tensor]
) -> ModeCall:
    leaves = tuple(inputs.leaves.values())
    grad_output = inputs.grad_output
    assert grad_output is not None, "inputs of a mode with gradients carry grad_output"
    name_of_output = output_name(case)

    if case.mode is Mode.BACKWARD:
        output = _tensor(implementation, forward())

        def run() -> tuple[Tensor, tuple[Tensor, ...]]:
            return output, torch.autograd.grad(output, leaves, grad_output, retain_graph=True)
    else:

        def run() -> tuple[Tensor, tuple[Tensor, ...]]:
            output = forward()
            return output, torch.autograd.grad(output, leaves, grad_output)

    def named_outputs(result: tuple[Tensor, tuple[Tensor, ...]]) -> dict[str, Tensor]:
        output, gradients = result
        named = {f"d{name}": grad for name, grad in zip(inputs.leaves, gradients, strict=True)}
        return {name_of_output: _tensor(implementation, output), **named}

    return ModeCall(run, named_outputs)


def _tensor(implementation: Implementation, result: object) -> Tensor:
    if not isinstance(result, Tensor):
        raise PluginError(
            f"{implementation.name} returned {type(result).__name__}; expected a torch.Tensor"
        )
    return result
