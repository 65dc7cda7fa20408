"""Inputs are the same everywhere, differ between sets, and are what their distribution says."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.attention import DType
from harness.distributions import DISTRIBUTIONS, LAYER_DISTRIBUTIONS, check_distribution
from harness.documents import document_lengths
from harness.errors import InvalidValueError
from harness.inputs.captured import save_captured
from harness.inputs.drawn_masks import alibi_slopes
from harness.inputs.sets import make_inputs
from harness.tensors import check_inputs, torch_dtype
from tests.problems import MASK_TEXTS, a_case, attention_inputs, configs, layer_inputs

_ATTENTION = sorted(DISTRIBUTIONS)


def _tensors(inputs):
    masks = [inputs.masks.key_padding, inputs.masks.keep, inputs.masks.bias, inputs.grad_output]
    return [*inputs.leaves.values(), *(t for t in masks if t is not None)]


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("distribution", _ATTENTION)
def test_inputs_fit_their_case_and_are_made_alike_twice(distribution, dtype):
    case = a_case(inputs=distribution, dtype=dtype, mode="backward", num_kv_heads=2)
    inputs, again = make_inputs(case), make_inputs(case)
    check_inputs(case, inputs)
    for one, other in zip(_tensors(inputs), _tensors(again), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert inputs.grad_output.is_contiguous()
    assert inputs.grad_output.dtype == torch_dtype(dtype)


@pytest.mark.parametrize("distribution", sorted(LAYER_DISTRIBUTIONS))
def test_layer_inputs_fit_their_case(distribution):
    for kv_seq_len in (7, 5):
        case = a_case(scope="layer", inputs=distribution, mode="backward", kv_seq_len=kv_seq_len)
        inputs = layer_inputs(case)
        check_inputs(case, inputs)
        assert inputs.is_self_attention == (kv_seq_len == 7)


@given(configs())
def test_every_mask_fits_every_shape(case):
    check_inputs(case, make_inputs(case))


def test_another_process_makes_the_same_inputs():
    case = a_case(inputs="spikes", mask="keep:random+bias:random")
    program = (
        "from tests.problems import *; import torch\n"
        "i = attention_inputs(a_case(inputs='spikes', mask='keep:random+bias:random'), 3)\n"
        "print(i.q.double().sum().item(), i.masks.keep.sum().item(), i.masks.bias.sum().item())"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    inputs = attention_inputs(case, 3)
    assert float(told[0]) == inputs.q.double().sum().item()
    assert int(told[1]) == inputs.masks.keep.sum().item()
    assert float(told[2]) == inputs.masks.bias.sum().item()


@pytest.mark.parametrize("distribution", _ATTENTION)
def test_sets_differ_in_every_tensor_and_share_their_masks(distribution):
    case = a_case(inputs=distribution, mask="keep:random", mode="backward")
    sets = [attention_inputs(case, index) for index in range(4)]
    for i, one in enumerate(sets):
        for other in sets[:i]:
            assert torch.equal(one.masks.keep, other.masks.keep)
            assert not torch.equal(one.k, other.k)
            assert not torch.equal(one.v, other.v)
            assert not torch.equal(one.grad_output, other.grad_output)


@given(st.integers(0, 100), st.integers(0, 100))
def test_seeds_that_differ_give_other_numbers(one, other):
    q = [attention_inputs(a_case(seed=seed)).q for seed in (one, other)]
    assert torch.equal(*q) == (one == other)


def test_a_tensor_does_not_depend_on_what_else_is_drawn():
    plain = attention_inputs(a_case())
    more = attention_inputs(a_case(mask="keep:random+bias:random", mode="backward"))
    assert torch.equal(plain.q, more.q)
    assert torch.equal(plain.v, more.v)


def test_distributions_are_what_they_say():
    base = attention_inputs(a_case(seq_len=64, batch_size=8))
    assert abs(float(base.q.std()) - 1) < 0.02
    loud = attention_inputs(a_case(seq_len=64, batch_size=8, inputs="logits_x8"))
    assert torch.equal(loud.q, base.q * 8)
    assert torch.equal(loud.k, base.k)
    shifted = attention_inputs(a_case(seq_len=64, batch_size=8, inputs="shifted_keys"))
    assert torch.equal(shifted.k, base.k + 8)
    sink = attention_inputs(a_case(seq_len=64, inputs="attention_sink"))
    scores = (sink.q @ sink.k.mT) / math.sqrt(8)
    assert float(scores[..., 0].mean() - scores[..., 1:].mean()) > 8
    spikes = attention_inputs(a_case(seq_len=512, batch_size=8, inputs="spikes"))
    assert float(spikes.v.abs().max()) > 12


def test_subnormal_values_are_subnormal_in_their_dtype():
    for dtype in ("float32", "float16", "bfloat16"):
        v = attention_inputs(a_case(inputs="subnormal", dtype=dtype)).v
        assert float(v.abs().max()) < torch.finfo(v.dtype).smallest_normal * 2
        assert int((v != 0).sum()) > 0.9 * v.numel()


def test_strided_inputs_are_not_contiguous_and_not_finite_ones_are_not_finite():
    assert not attention_inputs(a_case(inputs="strided")).q.is_contiguous()
    q = attention_inputs(a_case(inputs="nonfinite")).q
    assert q.isnan().any()
    assert q.isinf().any()


def test_projected_queries_of_a_layer_are_standard_normal():
    inputs = layer_inputs(a_case(scope="layer", hidden_size=256, num_heads=4, seq_len=256))
    for weight in (inputs.weights.w_q, inputs.weights.w_k, inputs.weights.w_v):
        assert abs(float((inputs.x @ weight.T).std()) - 1) < 0.02


@given(st.integers(0, 5000))
def test_documents_cover_the_sequence_and_none_is_empty(length):
    lengths = document_lengths(length)
    assert sum(lengths) == length
    assert all(part > 0 for part in lengths)


def test_a_document_mask_is_block_diagonal_at_the_position_of_the_query():
    keep = attention_inputs(a_case(seq_len=10, mask="document")).masks.keep
    ends = torch.tensor(document_lengths(10)).cumsum(0)
    of = torch.bucketize(torch.arange(10), ends, right=True)
    assert torch.equal(keep, of[:, None] == of)
    short = a_case(seq_len=2, kv_seq_len=10, mask="bottom_right+document")
    assert torch.equal(attention_inputs(short).masks.keep, keep[-2:])


def test_key_padding_keeps_the_lengths_that_the_config_names():
    case = a_case(batch_size=3, mask="padding:0.5")
    padding = attention_inputs(case).masks.key_padding
    assert tuple(padding.sum(dim=1).tolist()) == case.config.key_lengths()
    assert bool((padding.int().diff(dim=1) <= 0).all())


def test_alibi_slopes_are_those_of_the_paper():
    assert alibi_slopes(8) == [2.0 ** -(i + 1) for i in range(8)]
    assert alibi_slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]
    bias = attention_inputs(a_case(num_heads=8, mask="bias:alibi")).masks.bias
    assert float(bias[0, 0, 6, 0]) == -3.0


@pytest.mark.parametrize("mask", MASK_TEXTS)
def test_masks_of_one_element_are_accepted(mask):
    case = a_case(seq_len=1, mask=mask)
    check_inputs(case, make_inputs(case))


def test_unknown_distributions_are_refused_with_the_choices():
    with pytest.raises(InvalidValueError, match=r"inputs: .*'gausian'; choices: gaussian, .*FILE"):
        check_distribution("gausian")
    with pytest.raises(InvalidValueError, match="scope=layer"):
        make_inputs(a_case(scope="layer", inputs="shifted_keys"))


@pytest.fixture
def captured(tmp_path):
    generator = torch.Generator().manual_seed(0)
    path = tmp_path / "layer.safetensors"
    q, k, v = (torch.randn(2, heads, 9, 8, generator=generator) for heads in (8, 4, 4))
    x = torch.randn(2, 9, 32, generator=generator)
    save_captured(path, q=q, k=k, v=v)
    save_captured(tmp_path / "x.safetensors", x=x)
    return path, (q, k, v), x


def test_captured_activations_come_back_cut_to_the_case(captured):
    path, (q, k, v), _ = captured
    case = a_case(inputs=f"captured:{path}", num_kv_heads=2)
    inputs = attention_inputs(case)
    check_inputs(case, inputs)
    assert torch.equal(inputs.q, q[:1, :4, :7])
    assert torch.equal(inputs.k, k[:1, :2, :7])
    assert torch.equal(inputs.v, v[:1, :2, :7])


def test_captured_sets_differ_but_have_the_same_scores(captured):
    path, _, _ = captured
    case = a_case(inputs=f"captured:{path}", num_kv_heads=2, dtype="bfloat16")
    sets = [attention_inputs(case, index) for index in range(4)]
    assert len({(float(i.q.sum()), float(i.v.sum())) for i in sets}) == 4
    for inputs in sets:
        assert torch.equal(inputs.q[:, ::2] @ inputs.k.mT, sets[0].q[:, ::2] @ sets[0].k.mT)


def test_captured_x_is_used_at_layer_scope_with_drawn_weights(captured):
    path, _, x = captured
    case = a_case(inputs=f"captured:{path.parent / 'x.safetensors'}", scope="layer")
    inputs = layer_inputs(case)
    check_inputs(case, inputs)
    assert torch.equal(inputs.x, x[:1, :7])
    assert torch.equal(layer_inputs(case, 1).x, -inputs.x)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"num_kv_heads": 4}, "1 times the heads of k"),
        ({"head_dim": 16, "num_kv_heads": 2}, "captured q of at least"),
        ({"seq_len": 64, "num_kv_heads": 2}, "captured q of at least"),
        ({"scope": "layer"}, "a captured tensor x"),
    ],
)
def test_captured_tensors_that_do_not_fit_are_refused(captured, axes, message):
    with pytest.raises(InvalidValueError, match=message):
        make_inputs(a_case(inputs=f"captured:{captured[0]}", **axes))


def test_captured_files_that_are_missing_or_no_safetensors_are_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="No such file"):
        check_distribution(f"captured:{tmp_path / 'none'}")
    (tmp_path / "text").write_text("this is no safetensors file at all")
    with pytest.raises(InvalidValueError, match="a safetensors file"):
        check_distribution(f"captured:{tmp_path / 'text'}")
    with pytest.raises(InvalidValueError, match="names of captured tensors"):
        save_captured(tmp_path / "x", query=torch.zeros(1))


def test_names_are_checked_without_torch():
    program = "import sys, harness.distributions, harness.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
