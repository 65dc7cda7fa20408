"""Seeded inputs of a case: the same numbers in every process, on every device.

Numbers are drawn in float32 on the CPU (float64 for float64 cases), shaped by the distribution, and
rounded to the case's dtype.

Shapes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len,
E hidden_size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from harness.attention import Case, Scope
from harness.distributions import captured_file, check_case_distribution
from harness.inputs.captured import captured_layer, captured_qkv
from harness.inputs.drawn_masks import make_masks
from harness.inputs.draws import Draw, drawer, shape_attention, shape_layer
from harness.tensors import (
    AttentionInputs,
    Inputs,
    LayerInputs,
    LayerWeights,
    MaskTensors,
    torch_dtype,
)


def make_inputs(case: Case, index: int = 0) -> Inputs:
    """The ``index``-th set of inputs of a case, on its device; sets differ, their masks do not.

    Raises:
        InvalidValueError: the distribution is unknown, does not exist at this scope, or its
            captured tensors do not fit the case.
    """
    check_case_distribution(case)
    masks = make_masks(case)
    draw = drawer(case, index)
    if case.scope is Scope.LAYER:
        return _layer_inputs(case, index, masks, draw)
    return _attention_inputs(case, index, masks, draw)


def _attention_inputs(case: Case, index: int, masks: MaskTensors, draw: Draw) -> AttentionInputs:
    c = case.config
    path = captured_file(case.inputs)
    queries = (c.batch_size, c.num_heads, c.seq_len, c.head_dim)
    keys = (c.batch_size, c.num_kv_heads, c.kv_seq_len, c.head_dim)
    if path is not None:
        q, k, v = captured_qkv(path, queries, keys, index)
    else:
        q, k, v = draw("q", *queries), draw("k", *keys), draw("v", *keys)
        q, k, v = shape_attention(case, index, q, k, v)
    grad = draw("grad_output", *queries) if case.mode.has_gradients else None
    place = _placer(case)
    return AttentionInputs(
        place(q), place(k), place(v), masks, None if grad is None else place(grad)
    )


def _layer_inputs(case: Case, index: int, masks: MaskTensors, draw: Draw) -> LayerInputs:
    c = case.config
    tensors = _drawn_layer(case, index, draw)
    path = captured_file(case.inputs)
    if path is not None:
        tensors |= captured_layer(path, tensors, index)
    place = _placer(case)
    placed = {name: place(tensor) for name, tensor in tensors.items()}
    weights = LayerWeights(placed["w_qkv"], placed["w_o"], c.num_heads)
    x_kv = placed.get("x_kv", placed["x"])
    return LayerInputs(placed["x"], x_kv, weights, masks, placed.get("grad_output"))


def _drawn_layer(case: Case, index: int, draw: Draw) -> dict[str, Tensor]:
    c = case.config
    width = c.num_heads * c.head_dim
    tensors = {
        "x": draw("x", c.batch_size, c.seq_len, c.hidden_size),
        # Weights keep the variance: projected queries, keys and values are standard normal.
        "w_qkv": draw("w_qkv", width + 2 * c.num_kv_heads * c.head_dim, c.hidden_size)
        / math.sqrt(c.hidden_size),
        "w_o": draw("w_o", c.hidden_size, width) / math.sqrt(width),
    }
    if c.kv_seq_len != c.seq_len:
        tensors["x_kv"] = draw("x_kv", c.batch_size, c.kv_seq_len, c.hidden_size)
    if case.mode.has_gradients:
        tensors["grad_output"] = draw("grad_output", c.batch_size, c.seq_len, c.hidden_size)
    shape_layer(case, index, tensors)
    return tensors


def _placer(case: Case) -> Callable[[Tensor], Tensor]:
    """Rounds to the case's dtype and moves to its device, keeping the strides."""
    dtype = torch_dtype(case.config.dtype)
    return lambda tensor: tensor.to(dtype).to(case.device)
