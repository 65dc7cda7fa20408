"""Gradients of the fused kernels, for autograd and for torch.compile.

Shapes: B batch_size, H num_heads, G num_kv_heads, L seq_len, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from implementations.fused.native import Path
from implementations.fused.plan import Geometry, MaskParts, Plan, Sizes


def forward(plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, L, D]`` and log-sum-exp ``[B, H, L]`` (float32)."""
    out = plan.new_output()
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    plan.forward(q, k, v, out, lse)
    return out, lse


def backward(
    plan: Plan, inputs: tuple[Tensor, Tensor, Tensor], out: Tensor, lse: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, contiguous."""
    q, k, v = inputs
    grads = (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape))
    plan.backward(inputs, out, lse, grad_out, grads)
    return grads


class FusedFunction(torch.autograd.Function):
    """See ``differentiable``."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = forward(plan, q, k, v)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        q, k, v, out, lse = ctx.saved_tensors
        return None, *backward(ctx.plan, (q, k, v), out, lse, grad_out)


def differentiable(plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention whose gradients autograd can take."""
    out: Tensor = FusedFunction.apply(plan, q, k, v)  # type: ignore[no-untyped-call]
    return out


# A plan as an operator's arguments; geometry is offset, before and after of ``Geometry``.
_OPERANDS = (
    "Tensor q, Tensor k, Tensor v, Tensor? key_padding, Tensor? keep, Tensor? bias, "
    "float scale, int[] geometry, int path, int products"
)


@torch.library.custom_op(
    "mha_bench::fused_attention",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_OPERANDS}) -> (Tensor, Tensor)",
)
def fused_attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """The same as one opaque operator, which is what torch.compile sees."""
    return forward(_plan(q, k, v, *rest), q, k, v)


@torch.library.custom_op(
    "mha_bench::fused_attention_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor out, Tensor lse, Tensor grad_out, {_OPERANDS}) -> (Tensor, Tensor, Tensor)",
)
def fused_attention_backward(
    out: Tensor, lse: Tensor, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    return backward(_plan(q, k, v, *rest), (q, k, v), out, lse, grad_out)


def _plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding: Tensor | None,
    keep: Tensor | None,
    bias: Tensor | None,
    scale: float,
    geometry: list[int],
    path: int,
    products: int,
) -> Plan:
    masks = MaskParts(key_padding, keep, bias)
    return Plan(Sizes.of(q, k, v), q.dtype, Path(path), scale, Geometry(*geometry), masks, products)


@fused_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = q.shape[:3]
    return q.new_empty((*shape, v.shape[3])), q.new_empty(shape, dtype=torch.float32)


@fused_attention_backward.register_fake
def _(
    out: Tensor, lse: Tensor, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


_NUM_TENSORS = 6  # the first of ``_OPERANDS``


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.numbers = inputs[_NUM_TENSORS:]
    ctx.save_for_backward(*inputs[:_NUM_TENSORS], *output)


def _backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    *operands, out, lse = ctx.saved_tensors
    grads = fused_attention_backward(out, lse, grad_out, *operands, *ctx.numbers)
    without_gradient = len(operands) - len(grads) + len(ctx.numbers)
    return (*grads, *(None,) * without_gradient)


fused_attention.register_autograd(_backward, setup_context=_setup_context)


def attend_as_operator(plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A plan's attention through ``fused_attention``."""
    masks, geometry = plan.masks, plan.geometry
    out: Tensor = fused_attention(
        *(q, k, v, masks.key_padding, masks.keep, masks.bias),
        plan.scale,
        [geometry.offset, geometry.before, geometry.after],
        int(plan.path),
        plan.products,
    )[0]
    return out
