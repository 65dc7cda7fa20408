"""After how many calls an implementation with a slow first call has paid for it.

Compiled implementations spend seconds before their first result; whether that is worth it depends
on how often the compiled function is called.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from harness.rows import Status

SLOW_START = 20.0  # a first call of this many usual calls, and of a tenth of a second, is one
_SLOW_START_S = 0.1


def break_even(cells: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """One line per case and implementation whose first call is slow.

    Args:
        cells: From ``harness.analysis.cells.cells_of``.
        baseline: Implementation that one would call instead.

    Returns:
        ``case_key``, ``case_id``, ``implementation``, ``first_call_s``, ``median_s``,
        ``baseline_s``, and ``calls``: from how many calls on it is ahead; missing when never.
    """
    ok = cells[cells["status"] == Status.OK]
    of_baseline = ok[ok["implementation"] == baseline].set_index("case_key")["median_s"]
    others = ok[ok["implementation"] != baseline]
    threshold = (SLOW_START * others["median_s"]).clip(lower=_SLOW_START_S)
    slow = others[others["first_call_s"] > threshold]
    slow = slow.assign(baseline_s=slow["case_key"].map(of_baseline)).dropna(subset="baseline_s")
    calls = pd.array([_calls(row) for row in slow.to_dict("records")], dtype="Int64")
    columns = ["case_key", "case_id", "implementation", "first_call_s", "median_s", "baseline_s"]
    return slow[columns].assign(calls=calls).reset_index(drop=True)


def _calls(row: Any) -> int | None:
    """Least n with first call + (n - 1) usual calls <= n calls of the baseline."""
    saved_s = row["baseline_s"] - row["median_s"]
    if not saved_s > 0:
        return None
    spent_s = float(row["first_call_s"] - row["median_s"])
    return max(1, math.ceil(spent_s / float(saved_s)))
