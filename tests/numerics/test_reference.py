"""The float64 oracle against other roads to the same numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.numerics.problem import Problem, attention_problem
from harness.numerics.reference import exact_attention, from_heads, head_weights, to_heads
from harness.numerics.score_blocks import blocks, keep_rows
from harness.tensors import MaskTensors, dense_keep
from tests.problems import (
    MASK_TEXTS,
    a_case,
    attention_inputs,
    configs,
    dense_attention,
    layer_inputs,
)


@given(configs())
def test_two_summation_orders_agree_to_1e_13(case):
    inputs = attention_inputs(case)
    exact = exact_attention(attention_problem(case.config, inputs))
    dense = dense_attention(case.config, inputs.q, inputs.k, inputs.v, inputs.masks)
    torch.testing.assert_close(exact.o, dense, rtol=1e-13, atol=1e-13)


@given(configs())
def test_its_own_masks_equal_the_dense_mask_that_implementations_get(case):
    c, inputs = case.config, attention_inputs(case)
    problem = attention_problem(c, inputs)
    shape = (c.batch_size, c.num_heads, c.seq_len, c.kv_seq_len)
    dense = dense_keep(c, inputs.masks, "cpu")
    wanted = torch.ones(shape, dtype=torch.bool) if dense is None else dense.expand(shape)
    rows = torch.arange(c.seq_len)
    for batch in range(c.batch_size):
        for head in range(c.num_heads):
            keep = keep_rows(problem, batch, head, rows, None)
            got = torch.ones_like(wanted[batch, head]) if keep is None else keep
            assert torch.equal(got, wanted[batch, head])


@given(configs(mode="backward"))
def test_gradients_equal_those_of_autograd(case):
    inputs = attention_inputs(case)
    leaves = [t.double().requires_grad_() for t in (inputs.q, inputs.k, inputs.v)]
    dense = dense_attention(case.config, *leaves, inputs.masks)
    wanted = torch.autograd.grad(dense, leaves, inputs.grad_output.double())
    exact = exact_attention(attention_problem(case.config, inputs), d_output=inputs.grad_output)
    for got, gradient in zip((exact.dq, exact.dk, exact.dv), wanted, strict=True):
        torch.testing.assert_close(got, gradient, rtol=1e-12, atol=1e-12)


@given(configs(seq_len=9), st.sets(st.integers(0, 8), min_size=1))
def test_sampled_rows_are_the_rows_of_the_whole(case, chosen):
    problem = attention_problem(case.config, attention_inputs(case))
    rows = torch.tensor(sorted(chosen))
    sampled, whole = exact_attention(problem, rows), exact_attention(problem)
    torch.testing.assert_close(sampled.o, whole.o[:, :, rows], rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(sampled.lse, whole.lse[:, :, rows], rtol=1e-14, atol=1e-14)


def test_blocks_of_rows_change_nothing(monkeypatch):
    case = a_case(seq_len=13, mask="causal", mode="backward")
    inputs = attention_inputs(case)
    problem = attention_problem(case.config, inputs)
    whole = exact_attention(problem, d_output=inputs.grad_output)
    monkeypatch.setattr("harness.numerics.score_blocks.BLOCK_SCORES", 3 * 13)
    monkeypatch.setattr("harness.numerics.score_blocks.LEAST_ROWS", 1)
    assert max(len(block.rows) for block in blocks(problem)) == 3
    chunked = exact_attention(problem, d_output=inputs.grad_output)
    for name in ("o", "lse", "dq", "dk", "dv"):
        torch.testing.assert_close(
            getattr(chunked, name), getattr(whole, name), rtol=1e-14, atol=1e-14
        )


def test_lse_is_the_log_of_the_sum_of_exponentials():
    case = a_case(mask="causal")
    problem = attention_problem(case.config, attention_inputs(case))
    exact = exact_attention(problem)
    first_score = (problem.q_BHLD[:, :, 0].double() * problem.k_BGSD[:, :, 0].double()).sum(-1)
    torch.testing.assert_close(exact.lse[:, :, 0], first_score * case.config.scale)


def test_a_query_without_keys_gives_zero_and_minus_infinity_and_zero_gradients():
    case = a_case(seq_len=5, kv_seq_len=3, mask="bottom_right", mode="backward")
    inputs = attention_inputs(case)
    exact = exact_attention(attention_problem(case.config, inputs), d_output=inputs.grad_output)
    assert bool((exact.o[:, :, :2] == 0).all())
    assert bool((exact.lse[:, :, :2] == -math.inf).all())
    assert bool((exact.dq[:, :, :2] == 0).all())
    assert all(bool(t.isfinite().all()) for t in (exact.o, exact.dq, exact.dk, exact.dv))


def test_without_any_key_the_output_is_zero_and_without_any_query_it_is_empty():
    no_keys = a_case(seq_len=3, kv_seq_len=0)
    exact = exact_attention(attention_problem(no_keys.config, attention_inputs(no_keys)))
    assert exact.o.shape == (1, 4, 3, 8)
    assert not exact.o.any()
    no_queries = a_case(seq_len=0, kv_seq_len=3)
    exact = exact_attention(attention_problem(no_queries.config, attention_inputs(no_queries)))
    assert exact.o.shape == (1, 4, 0, 8)


@pytest.mark.parametrize("garbage", [1e10, math.inf, math.nan])
@pytest.mark.parametrize("which", ["k", "v"])
def test_nothing_below_a_mask_reaches_the_output(garbage, which):
    case = a_case(mask="padding:0.3")
    inputs = attention_inputs(case)
    problem = attention_problem(case.config, inputs)
    before = exact_attention(problem).o
    getattr(inputs, which)[:, :, -1] = garbage
    assert not inputs.masks.key_padding[0, -1]
    assert torch.equal(exact_attention(problem).o, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_in_an_attended_value_comes_out(value):
    case = a_case(mask="causal")
    inputs = attention_inputs(case)
    inputs.v[0, 1, 3, 2] = value
    o = exact_attention(attention_problem(case.config, inputs)).o
    bad = ~o.isfinite()
    assert bad[0, 1, 3:, 2].all()
    assert int(bad.sum()) == 4
    assert torch.equal(o[0, 1, 3:, 2], torch.full((4,), value).double()) or math.isnan(value)


def test_a_bias_of_the_smallest_number_is_uniform_and_one_of_minus_infinity_is_a_mask():
    case = a_case(mask="bias:random")
    inputs = attention_inputs(case)
    inputs.masks.bias[:, :, 0] = torch.finfo(torch.float32).min
    inputs.masks.bias[:, :, 1] = -math.inf
    o = exact_attention(attention_problem(case.config, inputs)).o
    torch.testing.assert_close(o[:, :, 0], inputs.v.double().mean(dim=2))
    assert not o[:, :, 1].any()


@pytest.mark.parametrize("mask", MASK_TEXTS)
def test_probabilities_sum_to_one_or_to_nothing(mask):
    case = a_case(seq_len=9, kv_seq_len=6, mask=mask)
    for block in blocks(attention_problem(case.config, attention_inputs(case))):
        total = block.probabilities.sum(dim=-1)
        assert bool(((total - 1).abs() < 1e-14).logical_or(total == 0).all())


def test_projections_by_head_are_the_formula_of_each_head():
    case = a_case(scope="layer", num_kv_heads=2)
    c = case.config
    inputs = layer_inputs(case)
    weights = head_weights(c, inputs.weights)
    x = inputs.x.double()
    q = to_heads(x, weights.w_q_HDE)
    k = to_heads(x, weights.w_k_GDE)
    for head in range(c.num_heads):
        rows = slice(head * c.head_dim, (head + 1) * c.head_dim)
        torch.testing.assert_close(q[:, head], x @ inputs.weights.w_q[rows].double().T)
    for head in range(c.num_kv_heads):
        rows = slice(head * c.head_dim, (head + 1) * c.head_dim)
        torch.testing.assert_close(k[:, head], x @ inputs.weights.w_k[rows].double().T)
    concatenated = torch.cat([q[:, head] for head in range(c.num_heads)], dim=-1)
    through_w_o = concatenated @ inputs.weights.w_o.double().T
    torch.testing.assert_close(from_heads(q, weights.w_o_EHD), through_w_o)


def test_a_problem_needs_no_masks_where_the_config_has_none():
    case = a_case()
    inputs = attention_inputs(case)
    problem = Problem(case.config, inputs.q, inputs.k, inputs.v, MaskTensors())
    assert exact_attention(problem).o.isfinite().all()
