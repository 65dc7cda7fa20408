"""Figures show as many digits as they have."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report import numbers


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (1.24, 1.21, 1.27, "1.24x [1.21, 1.27]"),
        (1.2438, 1.2378, 1.2498, "1.244x [1.238, 1.250]"),
        (12.41, 12.1, 12.7, "12.4x [12.1, 12.7]"),
        (0.1234, 0.1, 0.15, "0.12x [0.10, 0.15]"),
        (31.0, 11.0, 51.0, "31x [11, 51]"),
        (1.5, None, None, "1.5x [?]"),
        (1.5, 0.0, math.inf, "1.5x [?]"),
        (None, None, None, "-"),
        (pd.NA, pd.NA, pd.NA, "-"),
    ],
)
def test_a_ratio_has_no_more_digits_than_its_interval_supports(
    value: float | None, low: float | None, high: float | None, expected: str
) -> None:
    assert numbers.ratio(value, low, high) == expected


@given(st.floats(0.05, 20), st.floats(0.0005, 0.5))
def test_the_last_digit_of_a_ratio_means_something(value: float, share: float) -> None:
    half = value * share
    text = numbers.ratio(value, value - half, value + half)
    decimals = len(text.partition("x")[0].partition(".")[2])
    assert 10.0**-decimals <= max(half, 1.0)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.00124, "1.24 ms"),
        (1.0, "1.00 s"),
        (123.4, "123 s"),
        (9.999e-4, "1000 µs"),
        (3.5e-8, "35.0 ns"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_seconds_come_in_the_unit_that_suits(seconds: float | None, expected: str) -> None:
    assert numbers.seconds(seconds) == expected


def test_bytes_and_rates_have_their_prefixes() -> None:
    assert [numbers.byte_count(n) for n in (0, 512, 131072, 12.5 * 2**20, None)] == [
        "0 B", "512 B", "128 KiB", "12.5 MiB", "-"]  # fmt: skip
    assert numbers.rate(8.71e10, "FLOP/s") == "87.1 GFLOP/s"
    assert numbers.rate(12.0, "B/s") == "12.0 B/s"


def test_errors_have_two_digits() -> None:
    assert numbers.error(6.04e-7) == "6.0e-07"
    assert numbers.in_roundoffs(7.31) == "7.3 u"
    assert numbers.in_roundoffs(pd.NA) == "-"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.007, "0.7 %"),
        (0.03, "3 %"),
        (0.058, "5.8 %"),
        (0.12, "12 %"),
        (1.1, "110 %"),
        (0.0, "0 %"),
    ],
)
def test_percentages_are_short(share: float, expected: str) -> None:
    assert numbers.percent(share) == expected


def test_counts_know_their_plural() -> None:
    assert (numbers.count(1, "case"), numbers.count(2, "case")) == ("1 case", "2 cases")
    assert numbers.process_ratios([2.2, 1.21]) == "1.21x / 2.20x"
