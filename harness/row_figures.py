"""Figures of one row: what its samples, errors and ceilings come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness.rows import Row, Samples

NONE = "none"
MAIN_OUTPUTS = ("o", "y")
LSE = "lse"


def round_minima(samples: Samples) -> tuple[float, ...]:
    """Seconds of the fastest call of each round's burst: the statistic that comparisons rest on."""
    return tuple(min(calls) for calls in samples.times_s)


def text(value: object) -> str:
    """The value in words; ``none`` for what is absent."""
    return NONE if value is None or value == "" else str(value)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def median_s(row: Row) -> float | None:
    """Seconds per call: the median over rounds of the burst's minimum."""
    return _median(round_minima(row.samples))


def burst_median_s(row: Row) -> float | None:
    """Seconds per call: the median over rounds of the burst's median."""
    return _median([statistics.median(calls) for calls in row.samples.times_s])


def call_times_s(row: Row) -> list[float]:
    """Seconds of every timed call, ascending."""
    return sorted(t for calls in row.samples.times_s for t in calls)


def percentile_95_s(row: Row) -> float | None:
    """Seconds that 95 % of the calls did not exceed."""
    calls = call_times_s(row)
    return calls[max(0, -(-95 * len(calls) // 100) - 1)] if calls else None


def rate(amount: int | None, row: Row) -> float | None:
    """An amount per second, at the median time."""
    seconds = median_s(row)
    return amount / seconds if amount is not None and seconds else None


def _roofline_times(row: Row) -> tuple[float, float] | None:
    """Least seconds by the machine's rate of products and by its bandwidth."""
    rates = (row.ceiling_flop_per_s, row.ceiling_bytes_per_s)
    if row.flop_count is None or row.min_bytes is None or not all(rates):
        return None
    flop_per_s, bytes_per_s = rates
    assert flop_per_s is not None
    assert bytes_per_s is not None
    return row.flop_count / flop_per_s, row.min_bytes / bytes_per_s


def ceiling_share(row: Row) -> float | None:
    """Least time by the ceilings over the median time."""
    times, seconds = _roofline_times(row), median_s(row)
    return max(times) / seconds if times and seconds else None


def ceiling_binds(row: Row) -> str:
    """Which ceiling that least time comes from."""
    times = _roofline_times(row)
    if times is None:
        return NONE
    return "compute" if times[0] >= times[1] else "memory"


def _number(value: object) -> float | None:
    return None if value is None or isinstance(value, (str, bool)) else float(value)  # type: ignore[arg-type]


def main_error(row: Row, measure: str) -> float | None:
    """A measure of the output's error."""
    for output in MAIN_OUTPUTS:
        if output in row.errors:
            return _number(row.errors[output].get(measure))
    return None


def lse_error(row: Row, measure: str) -> float | None:
    """A measure of the log-sum-exp's error, where the implementation offers one."""
    return _number(row.errors.get(LSE, {}).get(measure))


def worst_error(row: Row, measure: str) -> float | None:
    """Largest over output and gradients; a measure that came out as no number (NaN) is not skipped.

    Not over a log-sum-exp: who offers one must not look less exact than who keeps it to himself.
    """
    found = [_number(m[measure]) for name, m in row.errors.items() if name != LSE and measure in m]
    numbers = [value for value in found if value is not None]
    return max(numbers) if numbers and len(numbers) == len(found) else None
