"""What nothing beats: implementations of a case that no other one dominates.

One dominates another where it is not worse in time, memory and error, and surely better in one of
them. Times are judged by the paired rounds, memory and error by tolerances.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.analysis.between import MEMORY_TOLERANCE
from harness.analysis.cells import cells_of, is_ok
from harness.analysis.compare import DEFAULT_MARGIN
from harness.analysis.pairs import CasePairs, control_of_run, pairs_by_case
from harness.statistics.intervals import Effect, interval

ERROR_TOLERANCE = 0.1
_TEXT = pd.StringDtype(storage="python")
PARETO_TYPES: dict[str, Any] = {
    "case_key": _TEXT,
    "implementation": _TEXT,
    "dominated_by": _TEXT,
}


def pareto(rows: pd.DataFrame, margin: float = DEFAULT_MARGIN) -> pd.DataFrame:
    """One line per case and ``ok`` implementation; ``dominated_by`` is ``none`` on the front."""
    wide = control_of_run(rows).margin(margin)
    pairs = pairs_by_case(rows)
    cells = cells_of(rows)
    lines = []
    for key, case in cells[is_ok(cells)].groupby("case_key", sort=False):
        by_name = {line["implementation"]: line for line in case.to_dict("records")}
        for name in by_name:
            better = (n for n in by_name if _dominates(by_name, n, name, pairs[str(key)], wide))
            lines.append((str(key), name, next(better, "none")))
    return pd.DataFrame(lines, columns=list(PARETO_TYPES)).astype(PARETO_TYPES)


def _dominates(
    cells: dict[str, dict[Any, Any]], one: str, other: str, pairs: CasePairs, margin: float
) -> bool:
    if one == other:
        return False
    orders = [
        _order_of_time(pairs.effect(one, other, mode_floor=0.0), margin),
        _order(cells, one, other, "peak_alloc_bytes", MEMORY_TOLERANCE),
        _order(cells, one, other, "worst_scaled_u", ERROR_TOLERANCE),
    ]
    return all(order is not None and order <= 0 for order in orders) and -1 in orders


def _order_of_time(effect: Effect | None, margin: float) -> int | None:
    """-1: surely faster; 0: no slower than the margin, as far as is known; 1: maybe slower."""
    if effect is None:
        return None
    shown = interval(effect)
    if shown.high < 0:
        return -1
    return 0 if shown.high <= margin else 1


def _order(
    cells: dict[str, dict[Any, Any]], one: str, other: str, column: str, tolerance: float
) -> int | None:
    """-1, 0 or 1: smaller, the same within the tolerance, larger; None: not measured for both."""
    first, second = cells[one][column], cells[other][column]
    if pd.isna(first) or pd.isna(second):
        return None
    if first * (1 + tolerance) < second:
        return -1
    return 0 if first <= second * (1 + tolerance) else 1
