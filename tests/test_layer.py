"""Multi-head attention as a layer: the per-head formula, torch's module, grouped heads."""

from __future__ import annotations

import pytest
import torch

from harness.numerics.problem import Problem
from harness.numerics.reference import exact_attention, from_heads, head_weights, to_heads
from implementations.naive import Naive
from tests.judging import judged
from tests.problems import a_case, layer_inputs

_SIZES = {"hidden_size": 24, "num_heads": 4, "batch_size": 2, "dtype": "float64"}


def _one_head(q, k, v):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V."""
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v


@pytest.mark.parametrize("kv_seq_len", [7, 5])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_the_packed_projection_equals_the_per_head_formula(num_kv_heads, kv_seq_len):
    case = a_case(**_SIZES, scope="layer", num_kv_heads=num_kv_heads, kv_seq_len=kv_seq_len)
    inputs = layer_inputs(case)
    w, d = inputs.weights, case.config.head_dim
    heads = []
    for i in range(case.config.num_heads):
        of_q, j = slice(i * d, (i + 1) * d), i // case.config.group_size
        of_kv = slice(j * d, (j + 1) * d)
        w_q, w_k, w_v = w.w_q[of_q].T, w.w_k[of_kv].T, w.w_v[of_kv].T
        heads.append(_one_head(inputs.x @ w_q, inputs.x_kv @ w_k, inputs.x_kv @ w_v))
    formula = torch.cat(heads, dim=-1) @ w.w_o.T  # Concat(head_1, ..., head_h) W^O
    torch.testing.assert_close(Naive().prepare(case, inputs)(), formula)


def _torch_module(case, inputs):
    module = torch.nn.MultiheadAttention(
        case.config.hidden_size,
        case.config.num_heads,
        bias=False,
        batch_first=True,
        dtype=torch.float64,
    )
    with torch.no_grad():
        module.in_proj_weight.copy_(inputs.weights.w_qkv)
        module.out_proj.weight.copy_(inputs.weights.w_o)
    return module.eval()


@pytest.mark.parametrize("kv_seq_len", [7, 5])
@pytest.mark.parametrize("mask", ["none", "padding:0.4", "keep:random", "bottom_right"])
def test_the_layer_equals_torchs_multihead_attention_with_the_same_weights(mask, kv_seq_len):
    case = a_case(**_SIZES, scope="layer", kv_seq_len=kv_seq_len, mask=mask, seed=3)
    inputs = layer_inputs(case)
    module = _torch_module(case, inputs)
    excluded = inputs.masks.key_padding
    keep = inputs.masks.keep
    if mask == "bottom_right":
        keep = torch.ones(7, kv_seq_len, dtype=torch.bool).tril(kv_seq_len - 7)
    if keep is not None:
        keep = keep.expand(2, 4, 7, kv_seq_len).flatten(0, 1)
    wanted, _ = module(
        inputs.x,
        inputs.x_kv,
        inputs.x_kv,
        key_padding_mask=None if excluded is None else ~excluded,
        attn_mask=None if keep is None else ~keep,
        need_weights=False,
    )
    got = Naive().prepare(case, inputs)()
    has_keys = torch.ones(2, 7, dtype=torch.bool)
    if keep is not None:  # the module gives NaN where no key attends
        has_keys = keep.view(2, 4, 7, kv_seq_len).any(dim=-1).all(dim=1)
    torch.testing.assert_close(got[has_keys], wanted[has_keys])


def test_c38_the_module_gives_the_same_output_with_and_without_its_weights():
    case = a_case(**_SIZES, scope="layer")
    inputs = layer_inputs(case)
    module = _torch_module(case, inputs)
    x = inputs.x
    with_weights, weights = module(x, x, x, need_weights=True)
    without, none = module(x, x, x, need_weights=False)
    assert weights.shape == (2, 7, 7)
    assert none is None
    torch.testing.assert_close(with_weights, without)
    torch.testing.assert_close(Naive().prepare(case, inputs)(), without)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_gradients_of_the_layer_are_those_of_the_module(num_kv_heads):
    case = a_case(**_SIZES, scope="layer", mode="backward", num_kv_heads=num_kv_heads)
    judgement = judged(Naive(), case)
    assert judgement.reasons == ()
    assert set(judgement.errors) == {"y", "dx", "dw_qkv", "dw_o"}


def test_the_oracles_layer_is_the_same_layer():
    case = a_case(**_SIZES, scope="layer", num_kv_heads=2, kv_seq_len=5, mask="top_left")
    c, inputs = case.config, layer_inputs(case)
    w = head_weights(c, inputs.weights)
    problem = Problem(
        c,
        to_heads(inputs.x, w.w_q_HDE),
        to_heads(inputs.x_kv, w.w_k_GDE),
        to_heads(inputs.x_kv, w.w_v_GDE),
        inputs.masks,
    )
    exact = from_heads(exact_attention(problem).o, w.w_o_EHD)
    torch.testing.assert_close(Naive().prepare(case, inputs)(), exact)


def test_a_head_dim_that_is_not_hidden_size_over_heads_changes_the_projections_only():
    case = a_case(**_SIZES, scope="layer", head_dim=10)
    inputs = layer_inputs(case)
    assert inputs.weights.w_qkv.shape == (120, 24)
    assert Naive().prepare(case, inputs)().shape == (2, 7, 24)
    assert judged(Naive(), case).reasons == ()
