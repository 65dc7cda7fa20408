"""The mask's text form, its parts, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.attention import AttentionConfig
from harness.errors import InvalidValueError
from harness.interface import ALL_MASK_FEATURES
from harness.mask import MASK_FORMS, Bias, Causal, Keep, Mask

masks = st.builds(
    Mask,
    causal=st.sampled_from(Causal),
    window=st.none() | st.integers(1, 4096),
    key_padding=st.just(0.0) | st.floats(1e-3, 0.999).map(lambda share: float(f"{share:g}")),
    keep=st.none() | st.sampled_from(Keep),
    bias=st.none() | st.sampled_from(Bias),
)


@given(masks)
def test_text_and_mask_are_each_others_inverse(mask):
    assert Mask.parse(str(mask)) == mask


@given(masks)
def test_features_are_known_and_none_only_for_the_empty_mask(mask):
    assert mask.features <= ALL_MASK_FEATURES
    assert mask.is_none == (not mask.features) == (str(mask) == "none")


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("none", Mask()),
        ("causal", Mask(causal=Causal.SQUARE)),
        ("bottom_right+window:256", Mask(causal=Causal.BOTTOM_RIGHT, window=256)),
        ("padding", Mask(key_padding=0.25)),
        ("padding:0.5", Mask(key_padding=0.5)),
        ("document", Mask(keep=Keep.DOCUMENT)),
        ("KEEP:random + bias:alibi", Mask(keep=Keep.RANDOM, bias=Bias.ALIBI)),
    ],
)
def test_the_documented_forms_are_read(text, mask):
    assert Mask.parse(text) == mask


@pytest.mark.parametrize(
    "text",
    ["", "casual", "window", "window:x", "padding:much", "causal:1", "document:3", "keep:all", "+"],
)
def test_an_unknown_part_is_refused_with_the_choices(text):
    with pytest.raises(InvalidValueError) as refusal:
        Mask.parse(text)
    assert refusal.value.choices == MASK_FORMS


@pytest.mark.parametrize("text", ["causal+top_left", "window:3+window:4", "document+keep:random"])
def test_a_part_given_twice_is_refused(text):
    with pytest.raises(InvalidValueError, match="only"):
        Mask.parse(text)


@pytest.mark.parametrize(
    ("parts", "argument"),
    [
        ({"window": 0}, "mask.window"),
        ({"window": 2.5}, "mask.window"),
        ({"window": True}, "mask.window"),
        ({"key_padding": 1.0}, "mask.key_padding"),
        ({"key_padding": -0.1}, "mask.key_padding"),
        ({"key_padding": float("nan")}, "mask.key_padding"),
    ],
)
def test_an_illegal_value_is_refused_by_the_name_of_its_part(parts, argument):
    with pytest.raises(InvalidValueError) as refusal:
        Mask(**parts)
    assert refusal.value.argument == argument


def _aligned(mask, seq_len, kv_seq_len):
    sizes = {"hidden_size": 8, "num_heads": 1, "seq_len": seq_len, "kv_seq_len": kv_seq_len}
    return AttentionConfig(**sizes, mask=Mask.parse(mask)).mask


@pytest.mark.parametrize("alignment", ["causal", "top_left", "bottom_right"])
def test_on_a_square_all_alignments_are_one_mask(alignment):
    assert _aligned(alignment, 4, 4) == Mask(causal=Causal.SQUARE)


def test_off_the_square_the_alignment_must_be_named():
    with pytest.raises(InvalidValueError, match="named alignment") as refusal:
        _aligned("causal", 2, 5)
    assert refusal.value.choices == ("top_left", "bottom_right")
    assert _aligned("top_left", 2, 5) != _aligned("bottom_right", 2, 5)
    with pytest.raises(InvalidValueError, match="beside a window"):
        _aligned("window:2", 2, 5)
