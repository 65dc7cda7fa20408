"""Small attention problems, by hand and by hypothesis, for the tests of the mathematics."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from harness.attention import AttentionConfig, Case
from harness.inputs.sets import make_inputs
from harness.tensors import AttentionInputs, LayerInputs, MaskTensors, dense_bias

SIZES = {"hidden_size": 32, "num_heads": 4, "seq_len": 7}

MASK_TEXTS = (
    "none",
    "top_left",
    "bottom_right",
    "bottom_right+window:3",
    "padding:0.5",
    "keep:random",
    "document",
    "bias:random",
    "bias:alibi",
    "top_left+padding:0.5+keep:random+bias:alibi",
)


def a_case(**axes: Any) -> Case:
    """A case from the axes' names and JSON values, small unless said."""
    return Case.from_dict({**SIZES, **axes})


def attention_inputs(case: Case, index: int = 0) -> AttentionInputs:
    inputs = make_inputs(case, index)
    assert isinstance(inputs, AttentionInputs)
    return inputs


def layer_inputs(case: Case, index: int = 0) -> LayerInputs:
    inputs = make_inputs(case, index)
    assert isinstance(inputs, LayerInputs)
    return inputs


def dense_attention(
    config: AttentionConfig, q: Tensor, k: Tensor, v: Tensor, masks: MaskTensors
) -> Tensor:
    """Float64 attention in one piece by way of a dense bias: another road than the oracle's."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (t.repeat_interleave(config.group_size, dim=1) for t in (k, v))
    scores = torch.einsum("bhld,bhsd->bhls", q, k) * config.scale
    bias = dense_bias(config, masks, "cpu")
    if bias is None:
        return torch.einsum("bhls,bhsd->bhld", scores.softmax(-1), v)
    bias = bias.double().expand_as(scores)
    empty = (bias == -torch.inf).all(dim=-1, keepdim=True)
    scores = scores + bias.masked_fill(empty, 0.0)
    return torch.einsum("bhls,bhsd->bhld", scores.softmax(-1).masked_fill(empty, 0.0), v)


@st.composite
def configs(draw: st.DrawFn, **fixed: Any) -> Case:
    """Cases of small odd sizes with every kind of mask and grouped heads."""
    num_kv_heads = draw(st.integers(1, 3))
    axes: dict[str, Any] = {
        "batch_size": draw(st.integers(0, 3)),
        "num_kv_heads": num_kv_heads,
        "num_heads": num_kv_heads * draw(st.integers(1, 3)),
        "head_dim": draw(st.integers(1, 9)),
        "seq_len": draw(st.integers(0, 9)),
        "kv_seq_len": draw(st.integers(0, 9)),
        "mask": draw(st.sampled_from(MASK_TEXTS)),
        "seed": draw(st.integers(0, 1000)),
        **fixed,
    }
    axes.setdefault("hidden_size", axes["num_heads"] * axes["head_dim"])
    return Case.from_dict(axes)
