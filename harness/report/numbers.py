"""Numbers as people read them: pretty units, and never more digits than an interval supports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

ABSENT = "-"
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
_RATE_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def is_absent(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def decimals_for(half_width: float) -> int:
    """Decimals of which the last still means something: its unit is at most half the half-width."""
    if not math.isfinite(half_width) or half_width <= 0:
        return 2
    return min(4, max(0, -math.floor(math.log10(half_width / 2) + 1e-9)))


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """``1.24x [1.21, 1.27]``; ``1.2x [?]`` where nothing bounds it."""
    if value is None or is_absent(value):
        return ABSENT
    if low is None or high is None or is_absent(low) or is_absent(high) or math.isinf(high):
        return f"{value:.1f}x [?]"
    digits = decimals_for((high - low) / 2)
    return f"{value:.{digits}f}x [{low:.{digits}f}, {high:.{digits}f}]"


def process_ratios(values: Sequence[float]) -> str:
    """The processes one by one, where no single number would be true."""
    return " / ".join(f"{value:.2f}x" for value in sorted(values))


def seconds(value: float | None) -> str:
    """Three significant digits in the unit that suits: ``1.24 ms``."""
    if value is None or is_absent(value):
        return ABSENT
    size, unit = next((u for u in _TIME_UNITS if abs(value) >= u[0]), _TIME_UNITS[-1])
    return f"{significant(value / size)} {unit}"


def byte_count(value: int | float | None) -> str:
    """Three significant digits in a binary unit: ``12.5 MiB``."""
    if value is None or is_absent(value):
        return ABSENT
    size, unit = next((u for u in _BYTE_UNITS if abs(value) >= u[0]), _BYTE_UNITS[-1])
    return f"{value} B" if unit == "B" else f"{significant(value / size)} {unit}"


def rate(value: float | None, unit: str) -> str:
    """Three significant digits with a decimal prefix: ``87.1 GFLOP/s``."""
    if value is None or is_absent(value):
        return ABSENT
    size, prefix = next((u for u in _RATE_UNITS if abs(value) >= u[0]), _RATE_UNITS[-1])
    return f"{significant(value / size)} {prefix}{unit}"


def significant(value: float, digits: int = 3) -> str:
    """Fixed notation with so many significant digits, no more decimals than they need."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:.{decimals}f}"


def error(value: float | None) -> str:
    """Two significant digits: ``6.0e-07``."""
    return ABSENT if value is None or is_absent(value) else f"{value:.1e}"


def in_roundoffs(value: float | None) -> str:
    """Error in unit roundoffs of the dtype: ``7.3 u``."""
    return ABSENT if value is None or is_absent(value) else f"{significant(value, 2)} u"


def percent(value: float) -> str:
    """``0.7 %``, ``3 %``, ``12 %``; ``<0.1 %`` for nearly nothing, ``?`` without bound."""
    if not math.isfinite(value):
        return "?"
    if 0 < value < 0.0005:
        return "<0.1 %"
    text = f"{100 * value:.1f}" if value < 0.095 else f"{100 * value:.0f}"
    return f"{text.removesuffix('.0')} %"


def count(number: int, noun: str) -> str:
    """``1 case``, ``12 cases``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
