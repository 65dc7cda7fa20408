"""The log-sum-exp that an implementation may offer beside its output: got once, never timed."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.attention import Case
from harness.errors import PluginError
from harness.interface import AttentionImplementation, Implementation, Inputs
from harness.tensors import AttentionInputs


def attended_with_lse(
    implementation: Implementation, case: Case, inputs: Inputs
) -> dict[str, Tensor]:
    """``o`` and ``lse`` of one call without gradients; empty where no log-sum-exp is offered.

    A layer has none, and dropout leaves it without an exact value to be judged by.

    Raises:
        PluginError: the call returned something else than two tensors.
    """
    if not isinstance(implementation, AttentionImplementation) or case.config.dropout_p:
        return {}
    if not isinstance(inputs, AttentionInputs):
        return {}
    with torch.no_grad():
        call = implementation.prepare_with_lse(case, inputs)
        result: object = None if call is None else call()
    if call is None:
        return {}
    match result:
        case (Tensor() as output, Tensor() as lse):
            return {"o": output, "lse": lse}
    raise PluginError(
        f"{implementation.name}.make_attend_with_lse gave {type(result).__name__}; "
        "expected output and log-sum-exp"
    )
