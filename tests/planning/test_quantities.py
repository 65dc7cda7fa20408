"""Durations and sizes as people type them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import InvalidValueError
from harness.planning.quantities import read_bytes, read_seconds


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("90s", 90), ("10m", 600), ("10min", 600), ("1.5h", 5400), ("30", 30), (30, 30), (0.5, 0.5)],
)
def test_durations_come_out_in_seconds(typed, seconds):
    assert read_seconds("budget", typed) == seconds


@pytest.mark.parametrize(
    ("typed", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("8 GiB", 8 * 2**30),
        ("512MB", 512 * 10**6),
        (4096, 4096),
        ("1e3", 1000),
    ],
)
def test_sizes_come_out_in_bytes(typed, size):
    assert read_bytes("memory_limit", typed) == size


@pytest.mark.parametrize("typed", ["soon", "5 parsecs", "-1s", 0, -3, "", "1.2.3s", True, [1]])
def test_anything_else_is_refused_with_an_example(typed):
    with pytest.raises(InvalidValueError, match="budget: expected a duration"):
        read_seconds("budget", typed)


def test_null_stays_null():
    assert read_seconds("budget", None) is None
    assert read_bytes("memory_limit", None) is None


@given(st.integers(1, 10**6), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_a_size_of_units_is_that_many_units(count, unit):
    assert read_bytes("memory_limit", f"{count}{unit}") == count * read_bytes("x", f"1{unit}")
