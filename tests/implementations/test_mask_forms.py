"""What implementations say of the form of their mask is what their kernel gets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from harness.attention import Mask, MaskForm
from harness.inputs.sets import make_inputs
from harness.interface import mask_form_of
from tests.everyone import all_specs, load
from tests.problems import a_case

RULES = ("causal", "window:3", "causal+window:3")
TENSORS = ("padding:0.3", "document", "keep:random", "bias:random", "padding:0.3+bias:alibi")
BOTH = ("causal+padding:0.3", "window:3+bias:random")


@pytest.fixture
def seen_by_sdpa(monkeypatch):
    """Arguments of every call of torch's function, as (is there a mask, is_causal)."""
    calls = []
    real = F.scaled_dot_product_attention

    def spy(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **others):
        calls.append((attn_mask is not None, is_causal))
        return real(q, k, v, attn_mask, dropout_p, is_causal, **others)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return calls


@pytest.mark.parametrize("mask", ["none", *RULES, *TENSORS, *BOTH])
@pytest.mark.parametrize("name", ["sdpa", "sdpa_math", "sdpa_flash", "torch_mha"])
def test_sdpa_gets_the_flag_or_the_tensor_that_the_row_says(name, mask, seen_by_sdpa):
    # Three heads and the mode: torch_mha's fast path would not call the function.
    case = a_case(
        hidden_size=24,
        num_heads=3,
        seq_len=9,
        mask=mask,
        scope="layer" if name == "torch_mha" else "attention",
    )
    implementation = load(name)
    if implementation.unsupported_reasons(case):
        assert name == "sdpa_flash"
        return
    implementation.prepare(case, make_inputs(case))()
    got = {
        (False, False): MaskForm.NONE,
        (False, True): MaskForm.FLAG,
        (True, False): MaskForm.TENSOR,
    }
    assert mask_form_of(implementation, case) is got[seen_by_sdpa[-1]]


@pytest.mark.parametrize("name", [spec.name for spec in all_specs() if "xformers" not in spec.name])
def test_everyone_here_tells_its_form(name):
    for mask in ("none", *RULES, *TENSORS, *BOTH):
        case = a_case(hidden_size=24, num_heads=3, seq_len=9, mask=mask)
        form = mask_form_of(load(name), case)
        assert form is not MaskForm.UNKNOWN
        assert (form is MaskForm.NONE) == (mask == "none")


@pytest.mark.parametrize(
    ("masks", "form"),
    [
        (("none",), MaskForm.NONE),
        (RULES, MaskForm.FLAG),
        (TENSORS, MaskForm.TENSOR),
        (BOTH, MaskForm.BOTH),
    ],
)
def test_by_parts_a_rule_is_a_flag_and_what_has_a_tensor_is_one(masks, form):
    for mask in masks:
        assert Mask.parse(mask).form_by_parts is form
        assert (Mask.parse(mask).form_as_tensor is MaskForm.NONE) == (mask == "none")


def test_who_does_not_tell_gets_none_without_a_mask_and_else_unknown():
    class Silent:
        pass

    case = a_case(hidden_size=24, num_heads=3, seq_len=9)
    causal = a_case(hidden_size=24, num_heads=3, seq_len=9, mask="causal")
    assert mask_form_of(Silent(), case) is MaskForm.NONE
    assert mask_form_of(Silent(), causal) is MaskForm.UNKNOWN


def test_the_fast_path_of_torch_mha_keeps_the_tensor_of_a_causal_mask(seen_by_sdpa):
    axes = {"hidden_size": 24, "num_heads": 2, "seq_len": 9, "scope": "layer", "mask": "causal"}
    inference, training = a_case(**axes), a_case(**axes, mode="forward_train")
    module = load("torch_mha")
    with torch.no_grad():
        module.prepare(inference, make_inputs(inference))()
    assert not seen_by_sdpa
    assert mask_form_of(module, inference) is MaskForm.TENSOR
    module.prepare(training, make_inputs(training))()
    assert seen_by_sdpa[-1] == (False, True)
    assert mask_form_of(module, training) is MaskForm.FLAG
