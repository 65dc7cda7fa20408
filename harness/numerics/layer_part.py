"""Gradients of a layer that is too large to certify whole, from a layer that is a part of it.

A weight's gradient belongs to one head, so a layer of a few of the heads has it exactly; that of
the source belongs to one batch entry, so a layer on that entry alone has it.

Shapes: H num_heads, G num_kv_heads, D head_dim, E hidden_size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from harness.attention import Case
from harness.numerics.certification import Certification
from harness.numerics.expected import Expected, Selection
from harness.numerics.expected_layer import expected_layer
from harness.numerics.layer_pass import run_layer_pass
from harness.numerics.problem import Problem
from harness.tensors import LayerInputs, LayerWeights, MaskTensors

Part = tuple[Case, LayerInputs, Problem, dict[str, Expected]]


def layer_of_heads(case: Case, inputs: LayerInputs, kv_heads: Sequence[int]) -> Part:
    """Gradients of the weights of some key heads, and of the query heads that share them."""
    c, w = case.config, inputs.weights
    heads = [g * c.group_size + i for g in kv_heads for i in range(c.group_size)]
    projected = [*heads, *(c.num_heads + g for g in kv_heads)]
    projected += [c.num_heads + c.num_kv_heads + g for g in kv_heads]
    blocks = w.w_qkv.reshape(-1, c.head_dim, c.hidden_size)
    outward = w.w_o.reshape(c.hidden_size, c.num_heads, c.head_dim)
    weights = LayerWeights(
        blocks[projected].flatten(0, 1), outward[:, heads].flatten(1), len(heads)
    )
    config = replace(c, num_heads=len(heads), num_kv_heads=len(kv_heads))
    part = replace(inputs, weights=weights, masks=_entries(inputs.masks, 1, heads))
    said = f"{len(kv_heads)} of {c.num_kv_heads} key heads"
    selections = {
        "dw_qkv": Selection("projected_head", torch.tensor(projected), said, tuple(blocks.shape)),
        "dw_o": Selection("head", torch.tensor(heads), said, tuple(outward.shape)),
    }
    return _expected(replace(case, config=config), part, inputs, selections)


def layer_of_batch(case: Case, inputs: LayerInputs, batch: int) -> Part:
    """Gradients of x and x_kv in one batch entry."""
    at = slice(batch, batch + 1)
    masks = _entries(inputs.masks, 0, [batch])
    if masks.key_padding is not None:
        masks = replace(masks, key_padding=masks.key_padding[at])
    x, dy = inputs.x[at], inputs.grad_output
    x_kv = x if inputs.is_self_attention else inputs.x_kv[at]
    part = replace(inputs, x=x, x_kv=x_kv, masks=masks, grad_output=None if dy is None else dy[at])
    said = f"1 of {case.config.batch_size} batch entries"
    selection = Selection("batch", torch.tensor([batch]), said)
    small = replace(case, config=replace(case.config, batch_size=1))
    return _expected(small, part, inputs, {"dx": selection, "dx_kv": selection})


def parts_of_layer(
    case: Case, inputs: LayerInputs, certification: Certification
) -> tuple[Part, ...]:
    """The parts in which gradients are certified."""
    parts = []
    if certification.kv_heads:
        parts.append(layer_of_heads(case, inputs, certification.kv_heads))
    if certification.batch is not None:
        parts.append(layer_of_batch(case, inputs, certification.batch))
    return tuple(parts)


def _expected(
    case: Case, part: LayerInputs, inputs: LayerInputs, selections: dict[str, Selection]
) -> Part:
    problem, done = run_layer_pass(case, part, None)
    whole = {f"d{name}": tuple(leaf.shape) for name, leaf in inputs.leaves.items()}
    expected = {
        name: replace(found, selection=selections[name], shape=whole[name])
        for name, found in expected_layer(case, part, done, None).items()
        if name in selections
    }
    return case, part, problem, expected


def _entries(masks: MaskTensors, dimension: int, indices: Sequence[int]) -> MaskTensors:
    """The mask of some batch entries (dimension 0) or heads (1)."""

    def of(mask: Tensor | None) -> Tensor | None:
        if mask is None or mask.dim() == 2 or mask.shape[dimension] == 1:
            return mask
        return mask.index_select(dimension, torch.tensor(indices, device=mask.device))

    return replace(masks, keep=of(masks.keep), bias=of(masks.bias))
