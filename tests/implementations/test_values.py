"""Every implementation computes one function: rules 2 to 12 of the semantics, on small cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.interface import AttentionInputs, Case, MaskTensors
from tests.implementations.exact import (
    case_of,
    exact_attention,
    in_float64,
    random_inputs,
    with_gradients,
)
from tests.implementations.on_cpu import ON_CPU, load

MASKS = (
    "none",
    "top_left",
    "bottom_right",
    "top_left+window:2",
    "bottom_right+window:3+padding:0.5",
    "padding:0.4",
    "keep:random",
    "bias:random",
    "bottom_right+keep:random+bias:random+padding:0.3",
)
SHAPES = {"square": {}, "fewer queries": {"seq_len": 5, "kv_seq_len": 11}}
SHAPES |= {"fewer keys": {"seq_len": 11, "kv_seq_len": 5}}

every_implementation = pytest.mark.parametrize("name", ON_CPU)


def run(name: str, case: Case, inputs: AttentionInputs) -> Tensor:
    implementation = load(name)
    assert implementation.unsupported_reasons(case) == ()
    return implementation.prepare(case, inputs)()


def largest_error(name: str, case: Case, inputs: AttentionInputs) -> float:
    expected = exact_attention(case.config, inputs)
    output = run(name, case, inputs)
    assert output.shape == expected.shape
    assert output.dtype == inputs.q.dtype
    return float((output.double() - expected).abs().max())


@every_implementation
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", MASKS)
def test_output_and_gradients_equal_the_float64_computation(
    name: str, mask: str, shape: str, num_kv_heads: int
) -> None:
    case = case_of(mask, "forward_backward", num_kv_heads=num_kv_heads, **SHAPES[shape])
    inputs = random_inputs(case)
    exact_inputs = in_float64(inputs)
    expected = with_gradients(exact_attention(case.config, exact_inputs), exact_inputs)
    actual = with_gradients(run(name, case, inputs), inputs)
    for output, gap in actual.difference(expected).items():
        assert gap < 3e-6, output


@every_implementation
@pytest.mark.parametrize(
    ("dtype", "bound"), [("float64", 1e-14), ("bfloat16", 4e-2), ("float16", 5e-3)]
)
def test_every_dtype_is_computed_to_its_own_accuracy(name: str, dtype: str, bound: float) -> None:
    case = case_of("bottom_right+bias:random", dtype=dtype, seq_len=5, kv_seq_len=11)
    assert largest_error(name, case, random_inputs(case)) < bound


@every_implementation
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_error_is_at_most_twice_that_of_naive_in_the_same_dtype(name: str, dtype: str) -> None:
    case = case_of(batch_size=1, seq_len=128, head_dim=64, dtype=dtype)
    inputs = random_inputs(case)
    assert largest_error(name, case, inputs) <= 2 * largest_error("naive", case, inputs) + 1e-5


@every_implementation
@pytest.mark.parametrize("head_dim", [1, 3, 20, 63, 80, 100, 200, 300, 512])
def test_every_head_dim_is_right(name: str, head_dim: int) -> None:
    case = case_of(batch_size=1, num_heads=2, head_dim=head_dim)
    assert largest_error(name, case, random_inputs(case)) < 1e-6


@every_implementation
@pytest.mark.parametrize("seq_len", [1, 2, 15, 16, 17, 31, 33, 64, 65, 127, 129])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_every_length_is_right(name: str, mask: str, seq_len: int) -> None:
    case = case_of(mask, batch_size=1, num_heads=2, seq_len=seq_len)
    assert largest_error(name, case, random_inputs(case)) < 1e-6


@pytest.mark.parametrize("options", [(64, 128), (128, 64), (1, 1), (200, 200)])
def test_chunks_of_any_size_give_the_same_output(options: tuple[int, int]) -> None:
    from implementations.chunked import Chunked

    case = case_of("top_left+window:70", batch_size=1, num_heads=2, seq_len=100, kv_seq_len=77)
    inputs = random_inputs(case)
    output = Chunked(*options).prepare(case, inputs)()
    assert float((output - exact_attention(case.config, inputs)).abs().max()) < 1e-6


@every_implementation
def test_the_scale_is_the_one_that_was_asked_for(name: str) -> None:
    case = case_of(scale=-0.7)
    assert largest_error(name, case, random_inputs(case)) < 1e-6


STRIDES = {
    "permuted": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "head_dim_not_innermost": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every_second_element": lambda x: torch.stack([x, -x], dim=-1).flatten(-2)[..., ::2],
    "offset_and_gaps": lambda x: torch.cat([x, x, x], dim=-1)[..., x.shape[-1] : -x.shape[-1]],
}


@every_implementation
@pytest.mark.parametrize("strides", STRIDES)
def test_strided_inputs_give_the_contiguous_result(name: str, strides: str) -> None:
    case = case_of("causal", num_kv_heads=2)
    inputs = random_inputs(case)
    strided = replace(inputs, **{x: STRIDES[strides](getattr(inputs, x)) for x in ("q", "k", "v")})
    assert not strided.q.is_contiguous()
    assert largest_error(name, case, strided) < 1e-6


@every_implementation
def test_expanded_inputs_give_the_contiguous_result(name: str) -> None:
    case = case_of("causal")
    inputs = random_inputs(case)
    expanded = replace(
        inputs, k=inputs.k[:1, :1].expand_as(inputs.k), v=inputs.v[:1].expand(3, -1, -1, -1)
    )
    assert largest_error(name, case, expanded) < 1e-6


@every_implementation
def test_short_sequences_of_a_large_permuted_batch_are_right(name: str) -> None:
    case = case_of(batch_size=84, num_heads=3, seq_len=3, head_dim=64)
    inputs = random_inputs(case)
    permuted = replace(inputs, q=STRIDES["permuted"](inputs.q), k=STRIDES["permuted"](inputs.k))
    assert largest_error(name, case, permuted) < 1e-6


@every_implementation
@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize(
    "sizes", [{"batch_size": 0}, {"seq_len": 0, "kv_seq_len": 5}, {"kv_seq_len": 0}]
)
def test_empty_sizes_give_empty_outputs_or_zeros(
    name: str, sizes: dict[str, int], mode: str
) -> None:
    case = case_of(mode=mode, **sizes)
    inputs = random_inputs(case)
    output = run(name, case, inputs)
    assert output.shape == inputs.q.shape
    assert bool((output == 0).all())
    if mode == "forward_backward":
        for gradient in torch.autograd.grad(output, (inputs.q, inputs.k, inputs.v), output):
            assert bool((gradient == 0).all())


def given(case: Case, **masks: Tensor) -> AttentionInputs:
    return replace(random_inputs(case), masks=MaskTensors(**masks))


@every_implementation
def test_a_fully_masked_row_is_zero_and_leaves_the_others_alone(name: str) -> None:
    keep = torch.rand(6, 10, generator=torch.Generator().manual_seed(0)) < 0.6
    keep[5] = False
    case = case_of("keep:given", batch_size=1, num_heads=2, seq_len=6, kv_seq_len=10, scale=0.125)
    inputs = given(case, keep=keep)
    assert bool((run(name, case, inputs)[:, :, 5] == 0).all())
    assert largest_error(name, case, inputs) < 1e-6


@every_implementation
@pytest.mark.parametrize("as_bias", [False, True])
def test_masked_rows_are_zero_with_finite_gradients_in_both_forms(name: str, as_bias: bool) -> None:
    keep = torch.zeros(8, 8, dtype=torch.bool)
    keep[:4, :4] = True
    mask = "bias:given" if as_bias else "keep:given"
    case = case_of(mask, "forward_backward", batch_size=1, num_heads=1, seq_len=8)
    bias = torch.zeros(8, 8).masked_fill(~keep, float("-inf"))
    inputs = given(case, bias=bias) if as_bias else given(case, keep=keep)
    result = with_gradients(run(name, case, inputs), inputs)
    assert bool((result.output[:, :, 4:] == 0).all())
    assert bool((result.output[:, :, :4] != 0).any())
    for gradient in (result.dq, result.dk, result.dv):
        assert bool(torch.isfinite(gradient).all())
        assert bool((gradient[:, :, 4:] == 0).all())


@every_implementation
def test_a_row_of_the_lowest_finite_bias_is_uniform_and_not_masked(name: str) -> None:
    bias = torch.zeros(3, 3)
    bias[0] = torch.finfo(torch.float32).min
    case = case_of("bias:given", batch_size=1, num_heads=1, seq_len=3, head_dim=4)
    inputs = given(case, bias=bias)
    output = run(name, case, inputs)
    torch.testing.assert_close(output[0, 0, 0], inputs.v[0, 0].mean(dim=0), atol=1e-6, rtol=0)


@every_implementation
@pytest.mark.parametrize(("dtype", "garbage"), [("float32", 1e10), ("float16", 6e4)])
@pytest.mark.parametrize("mask", ["keep:given", "bias:given"])
def test_finite_garbage_under_a_mask_never_leaks(
    name: str, mask: str, dtype: str, garbage: float
) -> None:
    case = case_of(mask, seq_len=6, dtype=dtype)
    keep = torch.ones(6, 6, dtype=torch.bool)
    keep[:, -1] = False
    bias = torch.zeros(6, 6, dtype=getattr(torch, dtype)).masked_fill(~keep, float("-inf"))
    inputs = given(case, keep=keep) if mask == "keep:given" else given(case, bias=bias)
    clean = run(name, case, inputs)
    for tensor in (inputs.k, inputs.v):
        tensor[:, :, -1] = garbage
        assert torch.equal(run(name, case, inputs), clean)


@every_implementation
def test_nan_in_a_query_gives_nan(name: str) -> None:
    case = case_of(batch_size=2, seq_len=16)
    inputs = random_inputs(case)
    inputs.q.fill_(float("nan"))
    assert bool(torch.isnan(run(name, case, inputs)).all())


@every_implementation
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nan_or_infinity_in_a_visible_value_is_not_hidden(name: str, poison: float) -> None:
    case = case_of(seq_len=6)
    inputs = random_inputs(case)
    inputs.v[:, :, 2] = poison
    assert not bool(torch.isfinite(run(name, case, inputs)).any())


@every_implementation
def test_causal_alignment_is_the_named_one(name: str) -> None:
    top_left, bottom_right, unmasked = (
        case_of(mask, seq_len=1, kv_seq_len=8) for mask in ("top_left", "bottom_right", "none")
    )
    inputs = random_inputs(unmasked)
    torch.testing.assert_close(run(name, top_left, inputs), inputs.v[:, :, :1])
    torch.testing.assert_close(run(name, bottom_right, inputs), run(name, unmasked, inputs))


@every_implementation
@pytest.mark.parametrize(
    ("mask", "counts"), [("bottom_right", [4, 5]), ("top_left", [1, 2]), ("none", [5, 5])]
)
def test_each_row_sees_as_many_keys_as_its_alignment_says(
    name: str, mask: str, counts: list[int]
) -> None:
    case = case_of(mask, batch_size=1, num_heads=1, seq_len=2, kv_seq_len=5, head_dim=5)
    zeros, identity = torch.zeros(1, 1, 5, 5), torch.eye(5)[None, None]
    weights = run(name, case, AttentionInputs(zeros[:, :, :2], zeros, identity))
    assert (weights[0, 0] > 0).sum(dim=-1).tolist() == counts


@every_implementation
def test_causal_and_key_padding_combine_by_and(name: str) -> None:
    case = case_of("causal+padding:0.25", batch_size=1, seq_len=4)
    inputs = random_inputs(case)
    assert inputs.masks.key_padding is not None
    assert inputs.masks.key_padding.tolist() == [[True, True, True, False]]
    assert largest_error(name, case, inputs) < 1e-6


@every_implementation
@pytest.mark.parametrize("position", range(8))
def test_the_future_does_not_reach_the_past(name: str, position: int) -> None:
    case = case_of("causal", seq_len=8)
    inputs = random_inputs(case)
    before = run(name, case, inputs)
    inputs.k[:, :, position + 1 :] *= 100
    inputs.v[:, :, position + 1 :] *= 100
    after = run(name, case, inputs)
    assert torch.equal(after[:, :, : position + 1], before[:, :, : position + 1])


@every_implementation
def test_large_float16_inputs_do_not_overflow(name: str) -> None:
    case = case_of(batch_size=1, num_heads=1, seq_len=4, head_dim=128, dtype="float16")
    full = torch.full((1, 1, 4, 128), 32.0, dtype=torch.float16)
    output = run(name, case, AttentionInputs(full, full, full))
    assert bool((output == 32).all())


@every_implementation
def test_the_layout_of_heads_and_positions_is_not_exchanged(name: str) -> None:
    case = case_of(batch_size=1, num_heads=2, seq_len=8, head_dim=4)
    inputs = random_inputs(case)
    exchanged = replace(
        inputs, **{x: getattr(inputs, x).reshape(1, 8, 2, 4).transpose(1, 2) for x in "qkv"}
    )
    right = exact_attention(case.config, inputs)
    wrong = exact_attention(case.config, exchanged)
    assert float((right - wrong).abs().max()) > 0.5
    assert largest_error(name, case, inputs) < 1e-6


@every_implementation
def test_dropout_repeats_under_one_seed_and_differs_under_another(name: str) -> None:
    case = case_of(mode="forward_train", dropout_p=0.5, batch_size=2, seq_len=16)
    inputs = random_inputs(case)
    implementation = load(name)
    if reasons := implementation.unsupported_reasons(case):
        assert "dropout_p=0.5" in " ".join(reasons)
        return
    call = implementation.prepare(case, inputs)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(call())
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("name", ["naive", "sdpa", "sdpa_math", "chunked", "chunked_small"])
def test_dropout_keeps_the_mean(name: str) -> None:
    case = case_of(mode="forward_train", dropout_p=0.5, batch_size=256, num_heads=4, seq_len=16)
    inputs = random_inputs(case)
    ones = replace(inputs, v=torch.ones_like(inputs.v))
    torch.manual_seed(0)
    assert run(name, case, ones).mean().item() == pytest.approx(1.0, abs=0.02)
