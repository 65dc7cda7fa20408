"""What is certified of a case that is too large to certify whole, and that it is as exact."""

from __future__ import annotations

import pytest
import torch

from harness.inputs.sets import make_inputs
from harness.measuring.fed_back import judge_fed_back
from harness.numerics import certification
from harness.numerics.certification import certification_of
from harness.numerics.judgement import make_reference
from implementations.chunked import Chunked
from implementations.naive import Naive
from tests.judging import judged
from tests.problems import a_case

SIZES = {"hidden_size": 32, "num_heads": 8, "num_kv_heads": 4, "seq_len": 40, "batch_size": 2}
MASKS = ("none", "causal", "padding:0.3+keep:random+bias:alibi")
GRADIENTS = {
    "attention": {"dq": "16 of 40 rows", "dk": "3 of 8 key heads", "dv": "3 of 8 key heads"},
    "layer": {
        "dw_qkv": "1 of 4 key heads",
        "dw_o": "1 of 4 key heads",
        "dx": "1 of 2 batch entries",
    },
}


def large(**axes):
    return a_case(**SIZES, mode="backward", **axes)


@pytest.fixture
def a_small_limit(monkeypatch):
    """Makes the oracle afford just less than a case, and so less than half of it in parts."""

    def limit(case):
        flop = certification._oracle_flop(case)
        monkeypatch.setattr(certification, "SAMPLED_ROWS", 16)
        monkeypatch.setattr(certification, "_INDIVISIBLE_FACTOR", 1.0)
        monkeypatch.setattr(certification, "MAX_ORACLE_FLOP", 0.999 * flop)

    return limit


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scope", ["attention", "layer"])
def test_parts_are_the_parts_of_the_whole(scope, mask, a_small_limit):
    case = large(scope=scope, mask=mask)
    inputs = make_inputs(case)
    whole = make_reference(case, inputs).expected
    a_small_limit(case)
    sampled = make_reference(case, inputs).expected
    assert set(sampled) == set(whole)
    for name, part in sampled.items():
        assert part.selection is not None
        torch.testing.assert_close(part.value, part.part_of(whole[name].value))
        assert part.shape == whole[name].shape


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scope", ["attention", "layer"])
def test_right_gradients_pass_and_the_row_says_what_was_compared(scope, dtype, a_small_limit):
    case = large(scope=scope, mask="causal", dtype=dtype)
    a_small_limit(case)
    judgement = judged(Naive(), case)
    assert judgement.reasons == ()
    said = {name: found["certified"] for name, found in judgement.errors.items()}
    assert {name: said[name] for name in GRADIENTS[scope]} == GRADIENTS[scope]


@pytest.mark.parametrize(
    ("scope", "name", "index", "place"),
    [
        ("attention", "dk", (1, 3, 7, 2), "batch 1, kv_head 3, key 7, channel 2"),
        ("layer", "dw_o", (5, 31), "feature 5, head 7, channel 3"),
        ("layer", "dw_qkv", (63, 9), "projected_head 15, channel 3, feature 9"),
        ("layer", "dx", (0, 9, 4), "batch 0, query 9, channel 4"),
    ],
)
def test_a_fault_in_a_part_is_found_at_its_own_place(scope, name, index, place, a_small_limit):
    def spoil(outputs):
        outputs[name][index] = 99.0

    case = large(scope=scope)
    a_small_limit(case)
    (reason, *_) = judged(Naive(), case, spoil).reasons
    assert f"at {place}" in reason


def test_the_last_key_head_is_always_among_those_compared(a_small_limit):
    case = large()
    a_small_limit(case)
    assert certification_of(case).slices[-1] == (1, 3)


def test_where_one_head_is_too_much_gradients_are_only_looked_at_for_nan(monkeypatch):
    monkeypatch.setattr(certification, "SAMPLED_ROWS", 16)
    monkeypatch.setattr(certification, "MAX_ORACLE_FLOP", 1.0)

    def spoil(outputs):
        outputs["dk"][0, 0, 0, 0] = float("nan")

    judgement = judged(Naive(), large(), spoil)
    assert "too large for the oracle" in judgement.errors["dv"]["reason"]
    assert judgement.reasons == ("dk: 1 elements are not finite",)


def fed_back(monkeypatch, share=0.3, **axes):
    """A layer with one batch entry beyond the limit, in the mode in which rows are fed back."""
    sizes = {**SIZES, "batch_size": 1}
    case = a_case(**sizes, mode="forward_backward", scope="layer", **axes)
    inputs = make_inputs(case)
    monkeypatch.setattr(certification, "SAMPLED_ROWS", 16)
    monkeypatch.setattr(certification, "_INDIVISIBLE_FACTOR", 1.0)
    limit = share * certification._oracle_flop(case)
    with monkeypatch.context() as limited:
        limited.setattr(certification, "MAX_ORACLE_FLOP", limit)
        return case, inputs, make_reference(case, inputs)


@pytest.mark.parametrize("kv_seq_len", [40, 55])
@pytest.mark.parametrize("mask", ["none", "bottom_right", "padding:0.3+keep:random+bias:alibi"])
def test_rows_fed_back_are_what_the_whole_says_of_them(mask, kv_seq_len, monkeypatch):
    case, inputs, reference = fed_back(monkeypatch, mask=mask, kv_seq_len=kv_seq_len)
    fed = reference.fed_back
    assert set(fed.reference.expected) == {f"d{n}" for n in inputs.leaves if n[0] == "x"}
    zero_rows = (fed.inputs.grad_output == 0).all(dim=-1).sum()
    assert zero_rows == 40 - 16
    whole = make_reference(case, fed.inputs).expected
    for name, part in fed.reference.expected.items():
        wanted = part.part_of(whole[name].value)
        torch.testing.assert_close(part.value, wanted, rtol=1e-10, atol=1e-12)
        scaled = part.part_of(whole[name].scaled)
        torch.testing.assert_close(part.scaled, scaled, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_right_sources_pass_and_the_row_says_from_how_many_rows(dtype, monkeypatch):
    case, _, reference = fed_back(monkeypatch, mask="causal", dtype=dtype)
    for implementation in (Naive(), Chunked()):
        contract = implementation.contract(case)
        judgement = judge_fed_back(implementation, case, reference, contract)
        assert judgement.reasons == ()
        said = "16 of 40 rows, fed back from 16 of 40 rows"
        assert judgement.errors["dx"]["certified"] == said
        assert 0 < judgement.errors["dx"]["bound_share"] < 1


def test_a_fault_in_the_gradient_of_a_source_is_found_by_feeding_rows_back(monkeypatch):
    class HalfOfTheKeys(Chunked):
        def make_attend(self, case, masks):
            attend = super().make_attend(case, masks)
            return lambda q, k, v: attend(q, 0.5 * k + 0.5 * k.detach(), v)

    case, _, reference = fed_back(monkeypatch)
    wrong = HalfOfTheKeys()
    (reason, *_) = judge_fed_back(wrong, case, reference, wrong.contract(case)).reasons
    assert reason.startswith("dx: off by ")
    assert "times what rounding allows at batch 0, query" in reason


def test_weights_are_still_certified_on_the_whole_gradient_of_the_output(monkeypatch):
    case, inputs, reference = fed_back(monkeypatch, share=0.9)
    assert reference.expected["dw_o"].certified == "1 of 4 key heads"
    whole = make_reference(case, inputs).expected["dw_o"].value
    part = reference.expected["dw_o"]
    torch.testing.assert_close(part.value, part.part_of(whole))


@pytest.mark.parametrize(
    ("batch_size", "entry"), [(1, "of the only batch entry"), (2, "of one batch entry")]
)
def test_a_source_that_cannot_be_certified_in_part_says_why(batch_size, entry, monkeypatch):
    case = a_case(**{**SIZES, "batch_size": batch_size}, mode="backward", scope="layer")
    monkeypatch.setattr(certification, "SAMPLED_ROWS", 16)
    monkeypatch.setattr(certification, "_INDIVISIBLE_FACTOR", 1.0)
    limit = 0.3 * certification._oracle_flop(case)
    monkeypatch.setattr(certification, "MAX_ORACLE_FLOP", limit)
    judgement = judged(Naive(), case)
    assert judgement.reasons == ()
    found = judgement.errors
    assert found["dx"]["bound_share"] is None
    assert found["dx"]["reason"] == (
        f"too large for the oracle: one element sums over all 8 heads and all 40 rows {entry}"
    )
    assert found["y"]["certified"] == "16 of 40 rows"


def test_gradients_that_sum_over_many_rows_may_be_added_up_in_the_dtype_block_by_block():
    # As torch's CPU kernel does: the gate of 3 u holds for 2048 rows.
    def noisy(amount):
        def spoil(outputs):
            generator = torch.Generator().manual_seed(0)
            for name in ("dk", "dq"):
                noise = torch.randn(outputs[name].shape, generator=generator)
                outputs[name] = (outputs[name] * (1 + amount * 2**-8 * noise)).bfloat16()

        return spoil

    def wrong(seq_len, amount):
        sizes = {"hidden_size": 16, "num_heads": 1, "seq_len": seq_len}
        case = a_case(**sizes, mode="backward", dtype="bfloat16")
        reasons = judged(Chunked(), case, noisy(amount)).reasons
        return {reason[:2] for reason in reasons if "RMS" in reason}

    assert wrong(2048, 3.6) == {"dk", "dq"}
    assert wrong(4096, 3.6) == {"dq"}
    assert wrong(4096, 5.0) == {"dk", "dq"}
