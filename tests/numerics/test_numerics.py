"""The judge: right results pass, wrong ones fail with a reason, and nothing hides a NaN."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.distributions import DISTRIBUTIONS
from harness.errors import InvalidValueError
from harness.inputs.sets import make_inputs
from harness.interface import Contract
from harness.numerics import measures
from harness.numerics.certification import SAMPLED_ROWS, certification_of
from harness.numerics.judgement import judge, make_reference
from harness.numerics.problem import attention_problem
from harness.numerics.reference import exact_attention
from implementations.naive import Naive
from tests.judging import judged, outputs_of
from tests.problems import MASK_TEXTS, a_case, attention_inputs, configs

DTYPES = ("float32", "bfloat16", "float16", "float64")
BIG = {"hidden_size": 64, "num_heads": 2, "seq_len": 65}


@pytest.mark.parametrize("dtype", DTYPES)
@given(configs(mode="backward"))
def test_right_results_of_every_shape_and_mask_pass(dtype, case):
    case = type(case).from_dict({**case.to_dict(), "dtype": dtype})
    assert judged(Naive(), case).reasons == ()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", sorted(set(DISTRIBUTIONS) - {"nonfinite"}))
def test_right_results_of_every_distribution_pass(distribution, dtype):
    case = a_case(**BIG, inputs=distribution, dtype=dtype, mode="backward", num_kv_heads=1)
    assert judged(Naive(), case).reasons == ()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_seq_len", [65, 40])
def test_right_layers_pass(kv_seq_len, dtype):
    case = a_case(
        **BIG, kv_seq_len=kv_seq_len, scope="layer", dtype=dtype, mode="backward", num_kv_heads=1
    )
    judgement = judged(Naive(), case)
    assert judgement.reasons == ()
    sources = {"dx"} if kv_seq_len == 65 else {"dx", "dx_kv"}
    assert set(judgement.errors) == {"y", "dw_qkv", "dw_o"} | sources


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exact_result_rounded_to_the_dtype_has_the_least_error(dtype):
    case = a_case(**BIG, dtype=dtype)
    inputs = attention_inputs(case)
    o = exact_attention(attention_problem(case.config, inputs)).o.to(inputs.q.dtype)
    judgement = judge(make_reference(case, inputs), {"o": o}, Contract.FUSED)
    errors = judgement.errors["o"]
    assert judgement.reasons == ()
    assert errors["rms_relative_u"] < 1
    assert errors["ulp_max"] == 0
    assert errors["bound_share"] < 0.6
    if dtype != "float64":
        assert errors["ratio_to_naive"] < 1


def test_measures_are_those_computed_by_hand():
    case = a_case(**BIG)
    inputs = attention_inputs(case)
    exact = exact_attention(attention_problem(case.config, inputs)).o
    got = exact.float()
    got[0, 1, 17, 5] += 0.25
    errors = judge(make_reference(case, inputs), {"o": got}, Contract.FUSED).errors["o"]
    error = got.double() - exact
    assert errors["max_abs"] == float(error.abs().max())
    assert errors["rms_relative"] == pytest.approx(float(error.norm() / exact.norm()))
    assert errors["rms_relative_u"] == pytest.approx(errors["rms_relative"] * 2**24)
    assert errors["worst_at"] == "batch 0, head 1, query 17, channel 5"
    assert errors["worst_head"] == "batch 0, head 1"
    assert errors["worst_row"] == "batch 0, head 1, query 17"
    probabilities = ((inputs.q @ inputs.k.mT) * case.config.scale).double().softmax(-1)
    scaled = error.abs() / (probabilities @ inputs.v.abs().double())
    assert errors["scaled_u"] == pytest.approx(float(scaled.max()) * 2**24, rel=1e-4)
    cosine = torch.nn.functional.cosine_similarity(got.double().flatten(), exact.flatten(), dim=0)
    assert errors["cosine"] == pytest.approx(float(cosine))


def test_a_wrong_element_is_named_with_what_came_and_what_was_expected():
    def spoil(outputs):
        outputs["o"][0, 1, 17, 5] = 3.0

    (reason, *_) = judged(Naive(), a_case(**BIG), spoil).reasons
    assert "o: off by" in reason
    assert "batch 0, head 1, query 17, channel 5: got 3, expected" in reason


@pytest.mark.parametrize("name", ["o", "dq", "dk", "dv"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_element_fails_and_no_maximum_skips_it(name, value):
    def spoil(outputs):
        outputs[name][0, 0, 3, 4] = value

    judgement = judged(Naive(), a_case(**BIG, mode="backward"), spoil)
    assert any(reason.startswith(f"{name}: ") for reason in judgement.reasons)
    assert not math.isfinite(judgement.errors[name]["max_abs"])
    assert not math.isfinite(judgement.errors[name]["bound_share"])


@pytest.mark.parametrize("name", ["y", "dx", "dw_qkv", "dw_o"])
def test_a_nan_in_any_output_of_a_layer_fails(name):
    def spoil(outputs):
        outputs[name].view(-1)[7] = math.nan

    judgement = judged(Naive(), a_case(**BIG, scope="layer", mode="backward"), spoil)
    assert any(reason.startswith(f"{name}: NaN differs") for reason in judgement.reasons)


def test_nan_in_must_come_out_as_nan():
    case = a_case(**BIG, inputs="nonfinite")
    assert judged(Naive(), case).reasons == ()

    def swallow(outputs):
        outputs["o"].nan_to_num_(0.0)

    (reason,) = judged(Naive(), case, swallow).reasons
    assert "NaN differs in 64 elements, first batch 0, head 0, query 64" in reason


def test_nan_that_gets_past_a_mask_is_a_policy_but_elsewhere_a_fault():
    case = a_case(**BIG, mask="padding:0.3")
    inputs = attention_inputs(case)
    inputs.v[:, 0, -1] = math.nan
    assert not inputs.masks.key_padding[0, -1]
    reference = make_reference(case, inputs)
    o = exact_attention(attention_problem(case.config, inputs)).o.float()
    assert judge(reference, {"o": o}, Contract.FUSED).reasons == ()
    o[:, 0] = math.nan
    assert judge(reference, {"o": o}, Contract.FUSED).reasons == ()
    o[:, 1, 0] = math.nan
    assert judge(reference, {"o": o}, Contract.FUSED).reasons


def test_rows_without_keys_must_be_exactly_zero():
    case = a_case(seq_len=5, kv_seq_len=3, mask="bottom_right")
    assert judged(Naive(), case).reasons == ()

    def touch(outputs):
        outputs["o"][0, 2, 1, 0] = 1e-30

    reason, *_ = judged(Naive(), case, touch).reasons
    assert reason == "o: 1 rows must be exactly 0 (no key attends), first batch 0, head 2, query 1"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda o, v: torch.zeros_like(o), id="zeros"),
        pytest.param(lambda o, v: v.clone(), id="values"),
        pytest.param(lambda o, v: o * 1.001, id="scaled by a thousandth"),
        pytest.param(lambda o, v: o + 1e-4, id="shifted"),
        pytest.param(lambda o, v: o.flip(2), id="rows reversed"),
        pytest.param(lambda o, v: o.flip(1), id="heads swapped"),
        pytest.param(lambda o, v: torch.full_like(o, 1e30), id="uninitialised"),
    ],
)
def test_what_is_no_attention_is_incorrect(spoil):
    case = a_case(**BIG)
    inputs = attention_inputs(case)
    reference = make_reference(case, inputs)
    o = outputs_of(Naive(), case, inputs)["o"]
    assert judge(reference, {"o": spoil(o, inputs.v)}, Contract.MATERIALISED).reasons


def test_an_error_shared_by_all_elements_is_caught_by_the_averages():
    case = a_case(hidden_size=64, num_heads=2, seq_len=300, dtype="bfloat16")
    inputs = attention_inputs(case)
    exact = exact_attention(attention_problem(case.config, inputs)).o
    o = (exact * (1 + 3 * 2.0**-8)).bfloat16()
    judgement = judge(make_reference(case, inputs), {"o": o}, Contract.MATERIALISED)
    assert judgement.errors["o"]["bound_share"] < 1
    assert any("RMS-relative error" in reason for reason in judgement.reasons)


def test_rounding_towards_zero_shows_as_bias():
    case = a_case(hidden_size=64, num_heads=1, seq_len=33, inputs="gaussian", dtype="bfloat16")
    inputs = attention_inputs(case)
    inputs.v.abs_()
    exact = exact_attention(attention_problem(case.config, inputs)).o
    bits = exact.float().view(torch.int32) & ~0xFFFF
    towards_zero = bits.view(torch.float32).bfloat16()
    reference = make_reference(case, inputs)
    judgement = judge(reference, {"o": towards_zero}, Contract.FUSED)
    assert judgement.errors["o"]["bias_u"] < -0.25
    assert any("bias" in reason for reason in judgement.reasons)
    nearest = judge(reference, {"o": exact.bfloat16()}, Contract.FUSED)
    assert abs(nearest.errors["o"]["bias_u"]) < 0.1


def test_a_wrong_shape_or_dtype_is_said_and_measures_nothing():
    case = a_case()
    inputs = attention_inputs(case)
    reference = make_reference(case, inputs)
    o = outputs_of(Naive(), case, inputs)["o"]
    judgement = judge(reference, {"o": o.transpose(1, 2)}, Contract.FUSED)
    assert judgement.reasons == ("o: shape (1, 7, 4, 8) instead of (1, 4, 7, 8)",)
    assert judgement.errors["o"]["max_abs"] is None
    judgement = judge(reference, {"o": o.half()}, Contract.FUSED)
    assert judgement.reasons == ("o: dtype torch.float16 instead of torch.float32",)


def test_outputs_are_compared_by_value_whatever_their_strides():
    case = a_case(**BIG)
    inputs = attention_inputs(case)
    o = outputs_of(Naive(), case, inputs)["o"]
    strided = o.transpose(1, 2).contiguous().transpose(1, 2)
    reference = make_reference(case, inputs)
    assert strided.stride() != o.stride()
    one, other = (judge(reference, {"o": t}, Contract.FUSED) for t in (strided, o))
    assert one.reasons == other.reasons == ()
    for measure in ("max_abs", "bound_share", "worst_at", "ulp_max"):
        assert one.errors["o"][measure] == other.errors["o"][measure]


def test_an_unknown_output_is_refused_with_the_known_ones():
    case = a_case()
    reference = make_reference(case, make_inputs(case))
    with pytest.raises(InvalidValueError, match=r"outputs: .*'y'; choices: lse, o"):
        judge(reference, {"y": torch.zeros(1)}, Contract.FUSED)


def test_lse_is_judged_where_it_is_offered():
    case = a_case(seq_len=5, kv_seq_len=3, mask="bottom_right", dtype="float16")
    inputs = attention_inputs(case)
    lse = exact_attention(attention_problem(case.config, inputs)).lse.float()
    reference = make_reference(case, inputs)
    assert judge(reference, {"lse": lse}, Contract.FUSED).reasons == ()
    assert judge(reference, {"lse": lse + 0.1}, Contract.FUSED).reasons
    lse[0, 0, 0] = -1e30
    assert "-Inf differs" in judge(reference, {"lse": lse}, Contract.FUSED).reasons[0]
    low = {"lse": lse.half()}
    assert "float16 instead of torch.float32" in judge(reference, low, Contract.FUSED).reasons[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_log_sum_exp_that_misses_one_key_of_a_hundred_is_beyond_its_bound(dtype):
    case = a_case(hidden_size=32, num_heads=2, seq_len=4, kv_seq_len=100, dtype=dtype)
    inputs = attention_inputs(case)
    scores = case.config.scale * (inputs.q.double() @ inputs.k.double().mT)
    without_last = {"lse": scores[..., :-1].logsumexp(dim=-1).float()}
    share = judge(make_reference(case, inputs), without_last, Contract.FUSED)
    assert "times what rounding allows at batch 0, head" in share.reasons[0]


def test_the_plain_log_sum_exp_of_the_dtype_is_the_measure_of_others():
    case = a_case(**BIG, dtype="bfloat16")
    inputs = attention_inputs(case)
    reference = make_reference(case, inputs)
    exact = reference.expected["lse"].value
    rounded = (case.config.scale * (inputs.q.double() @ inputs.k.double().mT)).bfloat16()
    plain = float((rounded.double().logsumexp(dim=-1) - exact).abs().max())
    got = {"lse": exact.float() + plain}
    ratio = judge(reference, got, Contract.MATERIALISED).errors["lse"]["ratio_to_naive"]
    assert 0.5 < ratio < 2


def test_with_dropout_there_is_no_error_and_the_row_says_why():
    case = a_case(dropout_p=0.1, mode="forward_train")
    inputs = attention_inputs(case)
    reference = make_reference(case, inputs)
    judgement = judge(reference, {"o": torch.zeros_like(inputs.q)}, Contract.FUSED)
    assert judgement.reasons == ()
    assert judgement.errors["o"]["max_abs"] is None
    assert "dropout_p=0.1" in judgement.errors["o"]["reason"]
    bad = judge(reference, {"o": torch.full_like(inputs.q, math.nan)}, Contract.FUSED)
    assert bad.reasons == ("o: 224 elements are not finite",)


@pytest.mark.parametrize("mask", MASK_TEXTS)
def test_an_empty_problem_is_judged_without_complaint(mask):
    for sizes in ({"batch_size": 0}, {"seq_len": 0, "kv_seq_len": 5}, {"kv_seq_len": 0}):
        case = a_case(**{"seq_len": 4, "kv_seq_len": 5, "mask": mask, "mode": "backward", **sizes})
        assert judged(Naive(), case).reasons == ()


def _long_case(**axes):
    sizes = {"hidden_size": 64, "num_heads": 1, "seq_len": 900, "kv_seq_len": 50}
    return a_case(**sizes, **axes)


@pytest.fixture
def small_oracle(monkeypatch):
    monkeypatch.setattr("harness.numerics.certification.MAX_ORACLE_FLOP", 1.0)


def test_long_sequences_are_certified_on_sampled_rows_first_and_last_among_them(small_oracle):
    case = _long_case()
    rows = certification_of(case).rows
    assert rows[0] == 0
    assert rows[-1] == 899
    assert 64 <= len(rows) <= SAMPLED_ROWS
    assert int(rows.diff().max()) < 3 * 900 / SAMPLED_ROWS
    judgement = judged(Naive(), case)
    assert judgement.reasons == ()
    assert judgement.errors["o"]["certified"] == f"{len(rows)} of 900 rows"


def test_a_fault_in_a_sampled_row_is_found_at_its_own_position(small_oracle):
    def spoil(outputs):
        outputs["o"][0, 0, -1, 2] = 9.0

    (reason, *_) = judged(Naive(), _long_case(), spoil).reasons
    assert "batch 0, head 0, query 899, channel 2" in reason


def test_every_row_comes_up_over_seeds(small_oracle):
    seen = set()
    for seed in range(60):
        seen |= set(certification_of(_long_case(seed=seed)).rows.tolist())
    assert len(seen) > 0.99 * 900


def test_ordinals_count_representable_numbers():
    numbers = torch.tensor([-math.inf, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, math.inf])
    ordinals = measures.ordinal(numbers).tolist()
    assert ordinals == sorted(ordinals)
    assert ordinals[2:6] == [-1, 0, 0, 1]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_next_number_is_one_ulp_away(number):
    here = torch.tensor([number])
    there = torch.nextafter(here, torch.tensor([math.inf]))
    assert int(measures.ordinal(there) - measures.ordinal(here)) == 1


def test_the_yardstick_is_the_error_of_plain_attention_in_the_same_dtype():
    case = a_case(**BIG, dtype="float16", mode="backward")
    for name, errors in judged(Naive(), case).errors.items():
        assert 0.5 < errors["ratio_to_naive"] < 2, name


def test_materialised_scores_are_judged_by_their_own_contract():
    case = a_case(**BIG, dtype="bfloat16", inputs="logits_x8")
    inputs = attention_inputs(case)
    outputs = outputs_of(Naive(), case, inputs)
    reference = make_reference(case, inputs)
    assert judge(reference, outputs, Contract.MATERIALISED).reasons == ()
    assert judge(reference, outputs, Contract.FUSED).reasons


def test_a_score_with_a_bias_may_be_rounded_once_more():
    # Seen: 1.1 times the bound for two roundings, of a scaled query and of a product.
    axes = {"hidden_size": 128, "num_heads": 1, "seq_len": 127, "batch_size": 2, "seed": 2}
    mask = "padding:0.3+keep:random+bias:random"
    case = a_case(**axes, mask=mask, inputs="outlier_channel", dtype="bfloat16")
    judgement = judged(Naive(), case)
    assert judgement.reasons == ()
    assert judgement.errors["o"]["bound_share"] > 0.7
