"""One meaning of attention for all: the public bug reports of shared semantics, each as a test over
every implementation that runs here. An implementation either gives the right result or says with
value and limit why it cannot.

The number in a test's name is that of the report; its source stands in the docstring.
"""

from __future__ import annotations

import math

import pytest
import torch

from harness.attention import Case
from harness.errors import InvalidValueError
from harness.inputs.sets import make_inputs
from harness.interface import Contract
from harness.numerics.judgement import judge, make_reference
from harness.tensors import AttentionInputs, MaskTensors, dense_keep
from tests.everyone import (
    all_specs,
    everyone,
    everyone_on_a_card,
    load,
    runs_here,
    supports,
)
from tests.judging import judged, outputs_of
from tests.problems import a_case, attention_inputs

ROWS = {"hidden_size": 16, "num_heads": 2}


def assert_same(name: str, case: Case, one: torch.Tensor, other: torch.Tensor) -> None:
    """Equal up to rounding: a kernel may take another path, but not to another result."""
    unit = 2.0**-16 if load(name).contract(case) is Contract.BF16X3 else _unit(case)
    torch.testing.assert_close(one, other, rtol=4 * unit, atol=16 * unit)


def _unit(case: Case) -> float:
    return case.config.dtype.unit_roundoff


def run(name: str, case: Case, inputs: AttentionInputs) -> torch.Tensor:
    return load(name).prepare(case, inputs)()


def with_masks(inputs: AttentionInputs, **masks: torch.Tensor) -> AttentionInputs:
    return AttentionInputs(
        inputs.q, inputs.k, inputs.v, MaskTensors(**masks, declared_bias=True), inputs.grad_output
    )


def assert_right(name: str, case: Case, inputs: AttentionInputs) -> None:
    """Outputs, gradients included where due, are what the oracle says of these very inputs."""
    judgement = judge(
        make_reference(case, inputs),
        outputs_of(load(name), case, inputs),
        load(name).contract(case),
    )
    assert judgement.reasons == ()


def test_every_implementation_that_cannot_run_here_says_why():
    for spec in all_specs():
        if not runs_here(spec.name):
            assert not supports(spec.name, a_case())


@everyone
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_c01_a_fully_masked_row_is_exactly_zero_and_its_gradients_are_finite(name, mode):
    """https://github.com/pytorch/pytorch/issues/103749"""
    case = a_case(**ROWS, seq_len=6, kv_seq_len=10, scale=0.125, mask="keep:random", mode=mode)
    if not supports(name, case):
        return
    keep = torch.ones(6, 10, dtype=torch.bool)
    keep[5] = False
    inputs = with_masks(attention_inputs(case), keep=keep)
    assert not run(name, case, inputs)[:, :, 5].any()
    assert_right(name, case, inputs)


@everyone
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_c02_boolean_and_additive_forms_of_one_mask_agree(name, mode):
    """https://github.com/pytorch/pytorch/issues/103963"""
    as_keep = a_case(hidden_size=8, num_heads=1, seq_len=8, mask="keep:random", mode=mode)
    as_bias = a_case(hidden_size=8, num_heads=1, seq_len=8, mask="bias:random", mode=mode)
    if not (supports(name, as_keep) and supports(name, as_bias)):
        return
    keep = torch.zeros(8, 8, dtype=torch.bool)
    keep[:4, :4] = True
    plain = attention_inputs(as_keep)
    bias = torch.zeros(8, 8).masked_fill(~keep, -math.inf)
    one, other = with_masks(plain, keep=keep), with_masks(plain, bias=bias)
    assert_right(name, as_keep, one)
    assert_right(name, as_bias, other)
    for inputs, case in ((one, as_keep), (other, as_bias)):
        assert not run(name, case, inputs)[:, :, 4:].any()
    assert_same(name, as_keep, run(name, as_keep, one), run(name, as_bias, other))


@everyone
def test_c03_a_row_of_the_smallest_number_is_not_masked_but_uniform(name):
    """https://github.com/pytorch/pytorch/issues/110213"""
    case = a_case(hidden_size=4, num_heads=1, seq_len=3, mask="bias:random")
    if not supports(name, case):
        return
    bias = torch.zeros(3, 3)
    bias[0] = torch.finfo(torch.float32).min
    inputs = with_masks(attention_inputs(case), bias=bias)
    o = run(name, case, inputs)
    atol = 1e-5 if load(name).contract(case) is Contract.BF16X3 else 3e-7
    torch.testing.assert_close(o[:, :, 0], inputs.v.mean(dim=2), rtol=0, atol=atol)


@everyone
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c06_finite_garbage_below_a_mask_never_reaches_the_output(name, dtype):
    """https://github.com/pytorch/pytorch/issues/101967"""
    case = a_case(mask="padding:0.3", dtype=dtype)
    if not supports(name, case):
        return
    inputs = attention_inputs(case)
    assert not inputs.masks.key_padding[0, -1]
    clean = run(name, case, inputs)
    for tensor in (inputs.k, inputs.v):
        tensor[:, :, -1] = 1e10
        assert_same(name, case, run(name, case, inputs), clean)


@everyone
@pytest.mark.parametrize("masked_out", ["k", "v"])
def test_c06_nan_below_a_mask_is_absent_or_makes_its_heads_nan_and_nothing_else(name, masked_out):
    """https://github.com/pytorch/pytorch/issues/101967"""
    case = a_case(mask="padding:0.3", batch_size=2, hidden_size=24, num_heads=3)
    if not supports(name, case):
        return
    inputs = attention_inputs(case)
    clean = run(name, case, inputs)
    assert not inputs.masks.key_padding[0, -1]
    getattr(inputs, masked_out)[0, 1, -1] = math.nan
    o = run(name, case, inputs)
    spoilt, others = o[0, 1], torch.cat((o[0, [0, 2]], o[1]))
    assert_same(name, case, others, torch.cat((clean[0, [0, 2]], clean[1])))
    if not spoilt.isnan().all():
        assert_same(name, case, spoilt, clean[0, 1])
    assert_right(name, case, inputs)


@everyone
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c07_queries_of_nan_give_nan(name, dtype):
    """https://github.com/pytorch/pytorch/issues/141128"""
    case = a_case(batch_size=2, seq_len=16, dtype=dtype)
    if not supports(name, case):
        return
    inputs = attention_inputs(case)
    inputs.q.fill_(math.nan)
    assert run(name, case, inputs).isnan().all()


@everyone
def test_c08_one_query_sees_the_first_key_from_the_top_and_all_keys_from_the_bottom(name):
    """https://github.com/pytorch/pytorch/issues/103082"""
    sizes = {"seq_len": 1, "kv_seq_len": 8}
    top, bottom, plain = (a_case(**sizes, mask=m) for m in ("top_left", "bottom_right", "none"))
    inputs = attention_inputs(plain)
    if supports(name, top):
        assert_right(name, top, inputs)
        assert_same(name, top, run(name, top, inputs), inputs.v[:, :, :1])
    if supports(name, bottom):
        assert_right(name, bottom, inputs)
        assert_same(name, bottom, run(name, bottom, inputs), run(name, plain, inputs))


@everyone
@pytest.mark.parametrize(("mask", "visible"), [("bottom_right", [4, 5]), ("top_left", [1, 2])])
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_c09_the_alignment_is_the_one_that_was_named(name, mask, visible, mode):
    """https://github.com/NVIDIA/cutlass/issues/2336"""
    case = a_case(seq_len=2, kv_seq_len=5, mask=mask, mode=mode)
    if not supports(name, case):
        return
    inputs = attention_inputs(case)
    assert_right(name, case, inputs)
    # Equal keys attend equally: the output is the mean of what each row sees.
    means = AttentionInputs(inputs.q, torch.zeros_like(inputs.k), inputs.v, grad_output=None)
    o = run(name, case, means)
    for row, count in enumerate(visible):
        assert_same(name, case, o[:, :, row], inputs.v[:, :, :count].mean(dim=2))


@everyone
@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("scope", ["attention", "layer"])
def test_c11_causal_and_padding_combine_by_and(name, scope, mode):
    """https://github.com/pytorch/pytorch/issues/187801"""
    case = a_case(seq_len=4, mask="causal+padding:0.25", mode=mode, scope=scope)
    if not supports(name, case):
        return
    keep = dense_keep(case.config, make_inputs(case).masks, "cpu")[0, 0]
    assert keep.sum(dim=1).tolist() == [1, 2, 3, 3]
    assert judged(load(name), case).reasons == ()


@everyone
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_c12_the_future_changes_nothing(name, dtype):
    """https://github.com/rasbt/LLMs-from-scratch/issues/1061"""
    case = a_case(seq_len=8, mask="causal", dtype=dtype)
    if not supports(name, case):
        return
    for i in range(7):
        inputs = attention_inputs(case)
        before = run(name, case, inputs)
        for tensor in (inputs.k, inputs.v):
            tensor[:, :, i + 1 :] *= 100
        after = run(name, case, inputs)
        assert_same(name, case, after[:, :, : i + 1], before[:, :, : i + 1])


@everyone
def test_c13_a_float_mask_of_zeros_and_ones_is_refused(name):
    """https://github.com/pytorch/pytorch/issues/103963"""
    case = a_case(seq_len=4, mask="bias:random")
    plain = attention_inputs(case)
    lower = MaskTensors(bias=torch.ones(4, 4).tril())
    with pytest.raises(InvalidValueError, match="declared_bias"):
        run(name, case, AttentionInputs(plain.q, plain.k, plain.v, lower))
    if supports(name, case):
        assert_right(name, case, with_masks(plain, bias=torch.ones(4, 4).tril()))


@everyone
@pytest.mark.parametrize(
    ("dtype", "of_mask"),
    [("float32", torch.int64), ("bfloat16", torch.float32), ("float16", torch.bfloat16)],
)
def test_c14_a_mask_of_another_dtype_is_refused_early(name, dtype, of_mask):
    """https://github.com/mahmoodlab/TITAN/issues/11"""
    case = a_case(dtype=dtype, mask="bias:random")
    inputs = with_masks(attention_inputs(case), bias=torch.full((7, 7), 2, dtype=of_mask))
    with pytest.raises(InvalidValueError, match=r"bias\.dtype"):
        run(name, case, inputs)


@everyone
def test_c16_heads_and_positions_are_not_confused(name):
    """https://github.com/facebookresearch/xformers/issues/967"""
    case = a_case(hidden_size=8, num_heads=2, seq_len=8)
    assert case.config.head_dim == 4
    if not supports(name, case):
        return
    inputs = attention_inputs(case)
    assert_right(name, case, inputs)
    # The same memory read as [batch, length, heads, head_dim] must fail the test.
    swapped = a_case(hidden_size=32, num_heads=8, seq_len=2)
    read = AttentionInputs(*(t.reshape(1, 2, 8, 4).transpose(1, 2) for t in vars_of(inputs)))
    wrong = run(name, swapped, read).transpose(1, 2)
    assert judge(make_reference(case, inputs), {"o": wrong}, load(name).contract(case)).reasons


def vars_of(inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return inputs.q, inputs.k, inputs.v


@everyone
@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_c17_any_strides_give_the_contiguous_result(name, mask, mode):
    """https://github.com/pytorch/pytorch/issues/181133"""
    sizes = {"batch_size": 84, "seq_len": 3, "num_heads": 3, "hidden_size": 192}
    contiguous = a_case(**sizes, mask=mask, mode=mode)
    strided = a_case(**sizes, mask=mask, mode=mode, inputs="strided")
    if not supports(name, strided):
        return
    one, other = (
        outputs_of(load(name), case, attention_inputs(case)) for case in (contiguous, strided)
    )
    for output in one:
        atol = 1e-6 if output == "o" else 3e-6
        torch.testing.assert_close(one[output], other[output], rtol=0, atol=atol)
    assert judged(load(name), strided).reasons == ()


@everyone
def test_c17_expanded_and_sliced_operands_give_the_contiguous_result(name):
    """https://github.com/pytorch/pytorch/issues/112577"""
    case = a_case(batch_size=3)
    if not supports(name, case):
        return
    plain = attention_inputs(case)
    expanded = plain.k[:1].expand(3, -1, -1, -1)
    wide = torch.randn(3, 4, 7, 16)
    sliced, backwards = wide[..., ::2], torch.randn(3, 8, 7, 4).transpose(1, 3)[:, :, :, :8]
    for q, k, v in (
        (plain.q, expanded, plain.v),
        (sliced, plain.k, expanded),
        (backwards, sliced, plain.v),
    ):
        got = run(name, case, AttentionInputs(q, k, v))
        copied = AttentionInputs(q.contiguous(), k.contiguous(), v.contiguous())
        torch.testing.assert_close(got, run(name, case, copied), rtol=0, atol=1e-6)


@everyone
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim", [1, 3, 20, 63, 80, 100, 200, 300, 512])
def test_c22_every_head_dim_is_right_or_refused_with_the_limit(name, head_dim, dtype):
    """https://github.com/pytorch/pytorch/issues/110630"""
    case = a_case(hidden_size=2 * head_dim, num_heads=2, dtype=dtype)
    if supports(name, case):
        judgement = judged(load(name), case)
        assert judgement.reasons == ()
        if dtype == "float32" and name.startswith("sdpa"):  # the figure that the report gives
            assert judgement.errors["o"]["max_abs"] < 1e-6


@everyone
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize(
    "seq_len", [1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, (100, 77), 127, 129, 192]
)
def test_c23_every_length_is_right_and_not_multiples_of_the_block_alone(name, seq_len, mask):
    """https://github.com/jax-ml/jax/issues/27224"""
    queries, keys = seq_len if isinstance(seq_len, tuple) else (seq_len, seq_len)
    mask = "bottom_right" if mask == "causal" else mask
    case = a_case(**ROWS, seq_len=queries, kv_seq_len=keys, mask=mask)
    if supports(name, case):
        assert judged(load(name), case).reasons == ()


@everyone
@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize(
    "sizes", [{"batch_size": 0}, {"seq_len": 0, "kv_seq_len": 7}, {"kv_seq_len": 0}]
)
@pytest.mark.parametrize("mask", ["none", "bottom_right", "padding:0.5", "keep:random+bias:random"])
def test_c25_empty_sizes_give_empty_outputs_and_no_keys_give_zeros(name, sizes, mask, mode):
    """https://github.com/Dao-AILab/flash-attention/pull/2515"""
    case = a_case(**sizes, mask=mask, mode=mode)
    if supports(name, case):
        assert judged(load(name), case).reasons == ()


@everyone
@pytest.mark.parametrize("length_of_v", [6, 4])
def test_c26_keys_and_values_of_other_lengths_never_reach_a_kernel(name, length_of_v):
    """https://github.com/pytorch/pytorch/pull/193728"""
    case = a_case(hidden_size=8, num_heads=1, seq_len=3, kv_seq_len=5)
    q, k, v = (torch.zeros(1, 1, length, 8) for length in (3, 5, length_of_v))
    with pytest.raises(ValueError, match=r"v\.shape"):
        run(name, case, AttentionInputs(q, k, v))


@everyone
def test_c29_a_batch_of_one_is_the_unbatched_problem_and_batch_entries_are_independent(name):
    """https://github.com/pytorch/pytorch/issues/187266"""
    one, two = a_case(**ROWS), a_case(**ROWS, batch_size=2)
    if not (supports(name, one) and supports(name, two)):
        return
    both = attention_inputs(two)
    together = run(name, two, both)
    for b in range(2):
        alone = run(name, one, AttentionInputs(*(t[b : b + 1] for t in vars_of(both))))
        torch.testing.assert_close(together[b : b + 1], alone, rtol=0, atol=1e-6)
    assert load(name).kernel(one, attention_inputs(one))


@everyone
def test_c30_scores_beyond_float16_do_not_overflow(name):
    """https://github.com/QwenLM/Qwen3/issues/910"""
    case = a_case(hidden_size=128, num_heads=1, seq_len=4, dtype="float16")
    if not supports(name, case):
        return
    inputs = attention_inputs(case)
    for tensor in vars_of(inputs):
        tensor.fill_(32.0)
    o = run(name, case, inputs)
    assert torch.equal(o, torch.full_like(o, 32.0))


@everyone
def test_c33_dropout_is_seeded_in_training_and_never_silent(name):
    """https://github.com/pytorch/pytorch/issues/124464"""
    with pytest.raises(InvalidValueError, match="training"):
        a_case(dropout_p=0.5)
    case = a_case(dropout_p=0.5, mode="forward_train", scope=_scope_of(name))
    if not supports(name, case):
        return
    call = load(name).prepare(case, make_inputs(case))
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(call().detach())
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def _scope_of(name: str) -> str:
    return "attention" if not load(name).unsupported_reasons(a_case()) else "layer"


@everyone
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_c34_low_precision_is_within_twice_the_error_of_naive(name, dtype):
    """https://github.com/Dao-AILab/flash-attention/issues/1849"""
    case = a_case(hidden_size=256, num_heads=4, seq_len=128, dtype=dtype)
    if supports(name, case):
        assert_near_naive(name, case)


@everyone_on_a_card
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_c34_holds_on_a_card_too(name, dtype):
    """https://github.com/Dao-AILab/flash-attention/issues/1849"""
    case = a_case(hidden_size=256, num_heads=4, seq_len=128, dtype=dtype, device="cuda")
    if not load(name).unsupported_reasons(case):
        assert_near_naive(name, case)


def assert_near_naive(name: str, case: Case) -> None:
    """Within the bound, and within twice the error of naive attention at the same dtype."""
    judgement = judged(load(name), case)
    assert judgement.reasons == ()
    errors = judgement.errors["o"]
    of_naive = errors["max_abs"] / errors["ratio_to_naive"]
    assert errors["max_abs"] <= 2 * of_naive + 1e-5


@everyone
def test_c37_outputs_of_other_strides_have_the_same_gradients_by_value(name):
    """https://github.com/pytorch/pytorch/issues/133671"""
    case = a_case(mode="backward")
    if not supports(name, case):
        return
    inputs = attention_inputs(case)
    for leaf in vars_of(inputs):
        leaf.requires_grad_()
    output = run(name, case, inputs)
    one = torch.autograd.grad(output, vars_of(inputs), inputs.grad_output, retain_graph=True)
    strided = inputs.grad_output.transpose(1, 2).contiguous().transpose(1, 2)
    other = torch.autograd.grad(output, vars_of(inputs), strided)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


@everyone
def test_c38_a_layer_is_one_layer_whoever_computes_it(name):
    """https://github.com/lyuwenyu/RT-DETR/issues/678"""
    case = a_case(scope="layer", batch_size=2)
    if supports(name, case):
        assert judged(load(name), case).reasons == ()


@everyone
def test_c39_scale_zero_is_the_mean_and_scale_one_is_not_the_default(name):
    """https://github.com/alipay/PainlessInferenceAcceleration/issues/22"""
    default, zero, one = a_case(), a_case(scale=0.0), a_case(scale=1.0)
    if not all(supports(name, case) for case in (default, zero, one)):
        return
    inputs = attention_inputs(default)
    mean = run(name, zero, inputs)
    wanted = inputs.v.mean(dim=2, keepdim=True).expand_as(mean)
    assert_same(name, zero, mean, wanted)
    assert_right(name, one, inputs)
    explicit = a_case(scale=1 / math.sqrt(8))
    assert torch.equal(run(name, explicit, inputs), run(name, default, inputs))
    assert float((run(name, one, inputs) - run(name, default, inputs)).abs().max()) > 0.01
