"""The domain types: validation, derived sizes, stable keys, and the checks of tensors."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.attention import AttentionConfig, Case, Causal, Mask
from harness.distributions import DISTRIBUTIONS
from harness.errors import InvalidValueError
from harness.inputs.sets import make_inputs
from harness.tensors import AttentionInputs, MaskTensors, check_inputs, dense_bias, dense_keep
from implementations.naive import Naive
from tests.problems import a_case, attention_inputs, configs, dense_attention

SIZES = {"hidden_size": 32, "num_heads": 4, "seq_len": 6}


@st.composite
def any_case(draw):
    mode = draw(st.sampled_from(["forward", "forward_train", "backward", "forward_backward"]))
    case = draw(configs())
    return Case.from_dict(
        {
            **case.to_dict(),
            "dtype": draw(st.sampled_from(["float32", "bfloat16", "float16", "float64"])),
            "scale": draw(st.sampled_from([case.config.scale, 0.0, 1.0, 0.3])),
            "dropout_p": 0.0 if mode == "forward" else draw(st.sampled_from([0.0, 0.1])),
            "scope": draw(st.sampled_from(["attention", "layer"])),
            "mode": mode,
            "device": draw(st.sampled_from(["cpu", "cuda"])),
            "threads": draw(st.integers(1, 8)),
            "inputs": draw(st.sampled_from(sorted(DISTRIBUTIONS))),
            "cache": draw(st.sampled_from(["warm", "cold"])),
            "allocator": draw(st.sampled_from(["reuse", "system"])),
        }
    )


@given(any_case())
def test_a_case_survives_json_with_its_key_and_id(case):
    again = Case.from_dict(json.loads(json.dumps(case.to_dict())))
    assert again == case
    assert (again.key, again.id) == (case.key, case.id)


@given(any_case(), any_case())
def test_cases_that_differ_have_other_keys_and_other_ids(one, other):
    assert (one.key == other.key) == (one == other)
    if one.device == "cpu":  # elsewhere the id leaves the number of CPU threads out
        assert (one.id == other.id) == (one == other)


def test_the_key_of_a_case_never_changes():
    # Runs on disk are compared by it: a change here orphans them.
    case = a_case(hidden_size=768, num_heads=8, seq_len=512)
    assert case.key == "bdae3f62bb9654f1"
    assert case.id == "b1-h768x8-s512-float32-cpu1"


def test_axes_at_their_default_do_not_enter_the_key():
    spelled_out = a_case(
        seed=0, dropout_p=0.0, cache="warm", inputs="gaussian", scope="attention", mask="none"
    )
    assert spelled_out.key == a_case().key


@pytest.mark.parametrize(
    ("axes", "argument"),
    [
        ({"num_heads": 0}, "num_heads"),
        ({"num_heads": 5}, "num_heads"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 30}, "num_heads"),
        ({"hidden_size": 512, "num_heads": 0}, "num_heads"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"num_kv_heads": 8}, "num_kv_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"seq_len": -1}, "seq_len"),
        ({"seq_len": 6.0}, "seq_len"),
        ({"seq_len": True}, "seq_len"),
        ({"kv_seq_len": -1}, "kv_seq_len"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": "1"}, "batch_size"),
        ({"scale": math.inf}, "scale"),
        ({"scale": math.nan}, "scale"),
        ({"dtype": "int8"}, "dtype"),
        ({"dropout_p": 1.0}, "dropout_p"),
        ({"dropout_p": -0.1}, "dropout_p"),
    ],
)
def test_an_impossible_config_is_refused_by_the_name_of_its_argument(axes, argument):
    with pytest.raises(InvalidValueError) as refusal:
        AttentionConfig(**{**SIZES, **axes})
    assert refusal.value.argument == argument


def test_c28_a_hidden_size_that_heads_do_not_divide_is_refused_with_the_reason():
    with pytest.raises(InvalidValueError, match=r"divisor of hidden_size=30 .*got 4"):
        AttentionConfig(hidden_size=30, num_heads=4, seq_len=8)
    assert AttentionConfig(hidden_size=30, num_heads=4, seq_len=8, head_dim=8).head_dim == 8


@pytest.mark.parametrize("axes", [{"mode": "train"}, {"scope": "block"}, {"cache": "hot"}])
def test_an_unknown_choice_is_refused_with_the_choices(axes):
    with pytest.raises(InvalidValueError, match="choices: ") as refusal:
        a_case(**axes)
    assert refusal.value.argument in axes


def test_an_unknown_axis_is_refused_with_the_axes():
    with pytest.raises(InvalidValueError, match=r"'heads'; choices: .*num_heads"):
        Case.from_dict({**SIZES, "heads": 4})


def test_c33_dropout_outside_training_is_refused():
    with pytest.raises(InvalidValueError, match="training"):
        a_case(dropout_p=0.5, mode="forward")
    assert a_case(dropout_p=0.5, mode="forward_train").config.dropout_p == 0.5


def test_sizes_left_out_are_derived():
    c = AttentionConfig(**SIZES)
    assert (c.num_kv_heads, c.head_dim, c.kv_seq_len, c.group_size) == (4, 8, 6, 1)
    assert c.scale == 1 / math.sqrt(8)
    assert c.has_default_scale


@given(st.integers(1, 6), st.integers(0, 40), st.floats(0.01, 0.99))
def test_key_lengths_are_ragged_and_the_last_entry_lacks_the_whole_share(batch, keys, share):
    c = AttentionConfig(
        hidden_size=8,
        num_heads=1,
        seq_len=3,
        batch_size=batch,
        kv_seq_len=keys,
        mask=Mask(key_padding=share),
    )
    lengths = c.key_lengths()
    assert list(lengths) == sorted(lengths, reverse=True)
    assert lengths[-1] == math.ceil(keys * (1 - share))
    assert all(0 <= length <= keys for length in lengths)


# Rule 2, C08, C09, C46: which keys each query sees.


def _visible(seq_len, kv_seq_len, mask):
    c = a_case(hidden_size=8, num_heads=1, seq_len=seq_len, kv_seq_len=kv_seq_len, mask=mask).config
    return dense_keep(c, MaskTensors(), "cpu")[0, 0].sum(dim=-1).tolist()


@pytest.mark.parametrize(
    ("seq_len", "kv_seq_len", "mask", "visible"),
    [
        (2, 5, "top_left", [1, 2]),
        (2, 5, "bottom_right", [4, 5]),
        (5, 2, "top_left", [1, 2, 2, 2, 2]),
        (5, 2, "bottom_right", [0, 0, 0, 1, 2]),
        (1, 8, "top_left", [1]),
        (1, 8, "bottom_right", [8]),
        (4, 4, "causal", [1, 2, 3, 4]),
        (4, 4, "causal+window:2", [1, 2, 2, 2]),
        (4, 4, "window:2", [2, 3, 3, 2]),
        (2, 5, "bottom_right+window:2", [2, 2]),
    ],
)
def test_keys_that_each_query_sees(seq_len, kv_seq_len, mask, visible):
    assert _visible(seq_len, kv_seq_len, mask) == visible


@given(configs())
def test_the_dense_bias_says_what_the_dense_keep_mask_and_the_bias_say(case):
    c, masks = case.config, make_inputs(case).masks
    shape = (c.batch_size, c.num_heads, c.seq_len, c.kv_seq_len)
    keep, both = dense_keep(c, masks, "cpu"), dense_bias(c, masks, "cpu")
    if both is None:
        assert keep is None
        assert masks.bias is None
        return
    kept = torch.ones(shape, dtype=torch.bool) if keep is None else keep.expand(shape)
    added = torch.zeros(shape) if masks.bias is None else masks.bias.expand(shape)
    assert torch.equal(both.expand(shape) == -torch.inf, ~kept)
    assert torch.equal(both.expand(shape)[kept], added[kept])


# Rules 4 and 6, C13, C14, C26: tensors that do not fit never reach a kernel.


def _refused(case, inputs, argument):
    with pytest.raises(InvalidValueError) as refusal:
        check_inputs(case, inputs)
    assert refusal.value.argument == argument
    with pytest.raises(InvalidValueError):
        Naive().prepare(case, inputs)


@pytest.mark.parametrize("length_of_v", [6, 4])
def test_c26_keys_and_values_of_other_lengths_are_refused(length_of_v):
    case = a_case(hidden_size=8, num_heads=1, seq_len=3, kv_seq_len=5)
    q, k, v = (torch.zeros(1, 1, length, 8) for length in (3, 5, length_of_v))
    _refused(case, AttentionInputs(q, k, v), "v.shape")


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_operands_of_another_shape_or_dtype_are_refused(name):
    case = a_case()
    good = attention_inputs(case)
    parts = {n: getattr(good, n) for n in ("q", "k", "v")}
    _refused(case, AttentionInputs(**{**parts, name: parts[name].transpose(1, 2)}), f"{name}.shape")
    _refused(case, AttentionInputs(**{**parts, name: parts[name].half()}), f"{name}.dtype")


def _with_mask(case, **masks):
    good = attention_inputs(case)
    return AttentionInputs(good.q, good.k, good.v, MaskTensors(**masks))


@pytest.mark.parametrize(
    ("dtype", "mask_dtype"),
    [
        ("float32", torch.int64),
        ("float32", torch.uint8),
        ("bfloat16", torch.float32),
        ("float16", torch.bfloat16),
    ],
)
def test_c14_masks_of_another_dtype_are_refused(dtype, mask_dtype):
    case = a_case(dtype=dtype, mask="bias:random")
    _refused(case, _with_mask(case, bias=torch.full((7, 7), 2, dtype=mask_dtype)), "bias.dtype")
    case = a_case(dtype=dtype, mask="keep:random")
    _refused(case, _with_mask(case, keep=torch.ones(7, 7, dtype=mask_dtype)), "keep.dtype")


def test_c13_a_float_mask_of_zeros_and_ones_is_refused_unless_declared_a_bias():
    case = a_case(seq_len=4, mask="bias:random")
    lower = torch.ones(4, 4).tril()
    _refused(case, _with_mask(case, bias=lower), "bias")
    check_inputs(case, _with_mask(case, bias=lower, declared_bias=True))


def test_c13_zeros_and_ones_as_a_bias_are_not_the_keep_mask_of_the_same_numbers():
    lower = torch.ones(4, 4).tril()
    as_bias = a_case(seq_len=4, mask="bias:random")
    as_keep = a_case(seq_len=4, mask="keep:random")
    inputs = _with_mask(as_bias, bias=lower, declared_bias=True)
    biased = Naive().prepare(as_bias, inputs)()
    kept = Naive().prepare(as_keep, _with_mask(as_keep, keep=lower.bool()))()
    assert float((biased - kept).abs().max()) > 0.1
    exact = dense_attention(as_bias.config, inputs.q, inputs.k, inputs.v, inputs.masks)
    torch.testing.assert_close(biased.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 7, 7), (7,), (2, 1, 7, 7), (1, 3, 7, 7), (5, 7)])
def test_masks_that_would_broadcast_over_the_wrong_axis_are_refused(shape):
    case = a_case(mask="keep:random")
    _refused(case, _with_mask(case, keep=torch.ones(shape, dtype=torch.bool)), "keep.shape")


@pytest.mark.parametrize("shape", [(7, 7), (1, 1, 7, 7), (1, 4, 7, 7), (1, 4, 1, 7), (1, 1, 7, 1)])
def test_masks_of_two_or_four_dimensions_are_accepted(shape):
    case = a_case(mask="keep:random")
    keep = torch.rand(shape) < 2
    check_inputs(case, _with_mask(case, keep=keep))
    assert torch.isfinite(Naive().prepare(case, _with_mask(case, keep=keep))()).all()


def test_a_mask_that_the_config_does_not_have_is_refused_and_so_is_a_missing_one():
    plain = a_case()
    _refused(plain, _with_mask(plain, keep=torch.ones(7, 7, dtype=torch.bool)), "masks.keep")
    padded = a_case(mask="padding:0.5")
    _refused(padded, _with_mask(padded), "masks.key_padding")


# Rule 8, C39.


def test_c39_scale_zero_is_the_mean_and_the_explicit_default_is_the_default():
    inputs = attention_inputs(a_case())
    mean = Naive().prepare(a_case(scale=0.0), inputs)()
    torch.testing.assert_close(mean, inputs.v.mean(dim=2, keepdim=True).expand_as(mean))
    default = Naive().prepare(a_case(), inputs)()
    assert torch.equal(Naive().prepare(a_case(scale=1 / math.sqrt(8)), inputs)(), default)
    assert a_case(scale=1 / math.sqrt(8)).key == a_case().key
    other = Naive().prepare(a_case(scale=1.0), inputs)()
    assert float((other - default).abs().max()) > 0.01


def test_a_causal_square_is_stored_under_one_name():
    c = a_case(mask="bottom_right").config
    assert c.mask.causal is Causal.SQUARE
    assert c.causal_offset == 0
    assert a_case(kv_seq_len=9, mask="bottom_right").config.causal_offset == 2
