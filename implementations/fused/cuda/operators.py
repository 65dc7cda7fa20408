"""The two passes as opaque operators, which is what torch.compile sees, with their gradients.

A plan travels as text and the tensors of its mask, for an operator takes nothing else.
Shapes: B batch_size, H num_heads, G num_kv_heads, L seq_len, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from harness.interface import Case, MaskTensors
from implementations.fused.cuda.arguments import Statistics
from implementations.fused.cuda.plan import Plan
from implementations.fused.cuda.tiles import TileSet, tiles_named

_OTHER_FIELDS = ("precision", "pack", "parts", "heads_inside")


def text_of(plan: Plan) -> str:
    """A plan without the tensors of its mask; ``plan_from`` is the inverse."""
    tiles = (plan.tiles.forward, plan.tiles.key_gradients, plan.tiles.query_gradients)
    others = {name: getattr(plan, name) for name in _OTHER_FIELDS}
    axes = Case(config=plan.config).to_dict()
    return json.dumps({"axes": axes, "tiles": [str(t) for t in tiles], **others})


@cache
def plan_from(text: str) -> Plan:
    """The plan that ``text_of`` wrote."""
    said = json.loads(text)
    config = Case.from_dict(said["axes"]).config
    tiles = TileSet(*(tiles_named(name) for name in said["tiles"]))
    return Plan(config, MaskTensors(), tiles, **{name: said[name] for name in _OTHER_FIELDS})


def _masked(
    text: str, key_padding: Tensor | None, keep: Tensor | None, bias: Tensor | None
) -> Plan:
    return replace(plan_from(text), masks=MaskTensors(key_padding, keep, bias))


@torch.library.custom_op("mha_bench::fused_attention_triton", mutates_args=())
def fused_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding: Tensor | None,
    keep: Tensor | None,
    bias: Tensor | None,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output ``[B, H, L, D]``, and of each query the maximum and the logarithm of the sum."""
    output, statistics = _masked(plan, key_padding, keep, bias).forward(q, k, v)
    return output, *statistics


@torch.library.custom_op("mha_bench::fused_attention_triton_backward", mutates_args=())
def fused_attention_triton_backward(
    d_output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    maximum: Tensor,
    log_sum: Tensor,
    key_padding: Tensor | None,
    keep: Tensor | None,
    bias: Tensor | None,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    statistics = Statistics(maximum, log_sum)
    masked = _masked(plan, key_padding, keep, bias)
    return masked.backward(q, k, v, output, statistics, d_output)


@fused_attention_triton.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    plan = plan_from(others[-1])
    return plan.new_output(q), *Statistics.like(q)


@fused_attention_triton_backward.register_fake
def _(d_output: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, *ctx.others = inputs
    ctx.save_for_backward(q, k, v, *output)


def _backward(ctx: Any, d_output: Tensor, *of_statistics: Tensor) -> tuple[Tensor | None, ...]:
    gradients = fused_attention_triton_backward(d_output, *ctx.saved_tensors, *ctx.others)
    return (*gradients, *(None for _ in ctx.others))


fused_attention_triton.register_autograd(_backward, setup_context=_setup_context)


def attend_as_operator(text: str, masks: MaskTensors, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A plan's attention through ``fused_attention_triton``."""
    parts = (masks.key_padding, masks.keep, masks.bias)
    output: Tensor = fused_attention_triton(q, k, v, *parts, text)[0]
    return output
