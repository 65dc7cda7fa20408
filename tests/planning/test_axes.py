"""Reading the values of an axis: one spelling out, and a message that helps for anything else."""

from dataclasses import fields

import pytest

from harness.attention import AttentionConfig, Case
from harness.errors import InvalidValueError
from harness.planning.axes import AXES, read_axis, read_point


def test_the_axes_are_those_of_a_case():
    of_case = {f.name for f in fields(Case)} - {"config"} | {
        f.name for f in fields(AttentionConfig)
    }
    assert set(AXES) == of_case


def test_a_single_value_is_a_list_of_one():
    assert read_axis("seq_len", 128) == (128,)


def test_duplicates_are_kept_once_in_the_order_given():
    assert read_axis("seq_len", [512, 128, 512, 128]) == (512, 128)


def test_two_spellings_of_one_mask_are_one_value():
    spellings = ["causal+padding:0.25", "padding+causal"]
    assert read_axis("mask", spellings) == ("causal+padding:0.25",)


@pytest.mark.parametrize("axis", ["num_kv_heads", "head_dim", "kv_seq_len", "scale", "threads"])
def test_null_asks_for_the_derived_value_where_there_is_one(axis):
    assert read_axis(axis, None) == (None,)


@pytest.mark.parametrize(
    ("axis", "value", "hint"),
    [
        ("seq_len", 1e3, "write 1000: 1e3 and 1.0 are not whole numbers here"),
        ("seq_len", "010", "write 10: a leading zero makes it text"),
        ("num_kv_heads", "None", "nothing is written null"),
        ("head_dim", "None", "at least 1, or null to derive it"),
        ("scale", "None", "nothing is written null"),
    ],
)
def test_a_near_miss_is_refused_with_the_right_spelling(axis, value, hint):
    with pytest.raises(InvalidValueError) as failure:
        read_axis(axis, value)
    assert hint in str(failure.value)
    assert repr(value) in str(failure.value)


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", None),
        ("num_heads", 0),
        ("num_heads", -8),
        ("num_heads", True),
        ("seq_len", -1),
        ("seq_len", 12.5),
        ("batch_size", -1),
        ("threads", 0),
        ("seed", -1),
        ("dropout_p", 1.0),
        ("dropout_p", -0.1),
        ("dropout_p", None),
        ("scale", float("nan")),
        ("scale", float("inf")),
        ("dtype", "float8"),
        ("mask", "causl"),
        ("mask", None),
        ("mask", 3),
        ("scope", "block"),
        ("mode", "train"),
        ("device", "tpu"),
        ("device", ["cpu"]),
        ("inputs", "uniform"),
        ("cache", "hot"),
        ("allocator", "jemalloc"),
    ],
)
def test_an_illegal_value_is_refused_by_the_name_of_its_axis(axis, value):
    with pytest.raises(InvalidValueError) as failure:
        read_axis(axis, [value])
    assert failure.value.argument in (axis, f"mask.{axis}")


@pytest.mark.parametrize("axis", ["dtype", "mask", "scope", "mode", "device", "inputs", "cache"])
def test_the_message_about_a_closed_axis_lists_its_choices(axis):
    with pytest.raises(InvalidValueError) as failure:
        read_axis(axis, "nonsense")
    assert failure.value.choices


def test_an_empty_list_is_refused():
    with pytest.raises(InvalidValueError, match="at least one value"):
        read_axis("seq_len", [])


def test_empty_batches_and_lengths_are_legal():
    assert read_axis("batch_size", 0) == (0,)
    assert read_axis("seq_len", 0) == (0,)


def test_a_point_fixes_axes_and_may_list_values():
    point = read_point("points[0]", {"hidden_size": 768, "num_heads": [8, 12]})
    assert point == {"hidden_size": (768,), "num_heads": (8, 12)}


@pytest.mark.parametrize("point", [{}, [768, 12], 768, None])
def test_a_point_must_be_a_mapping(point):
    with pytest.raises(InvalidValueError, match="axes and their values"):
        read_point("points[0]", point)


def test_an_unknown_axis_in_a_point_is_named_with_its_close_match():
    with pytest.raises(InvalidValueError, match="did you mean num_heads") as failure:
        read_point("points[3]", {"num_head": 8})
    assert failure.value.argument == "points[3]"
