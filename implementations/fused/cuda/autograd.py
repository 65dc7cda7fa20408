"""The plan's two passes as one function of q, k and v that autograd knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from implementations.fused.cuda.arguments import Statistics
from implementations.fused.cuda.plan import Plan


def attend(plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``[B, H, L, D]`` from q ``[B, H, L, D]``, k and v ``[B, G, S, D]``, any strides."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        output: Tensor = _Attention.apply(q, k, v, plan)  # type: ignore[no-untyped-call]
        return output
    return plan.forward(q, k, v)[0]


class _Attention(torch.autograd.Function):
    """Attention whose gradients are recomputed from the statistics."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        output, statistics = plan.forward(q, k, v)
        ctx.save_for_backward(q, k, v, output, *statistics)
        ctx.plan = plan
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, output, *statistics = ctx.saved_tensors
        gradients = ctx.plan.backward(q, k, v, output, Statistics(*statistics), d_output)
        return (*gradients, None)
