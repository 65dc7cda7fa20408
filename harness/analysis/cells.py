"""All passes of one (case, implementation) as one line: its cell.

The cell has the worst status of its passes: what crashes in one process of three isn't ranked.
Times are medians over passes, memory and errors the largest of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from harness.columns import AXES, ERROR_MEASURES
from harness.rows import Status

STATUS_BY_SEVERITY = (
    Status.INCORRECT,
    Status.CRASHED,
    Status.ERROR,
    Status.OUT_OF_MEMORY,
    Status.TIMEOUT,
    Status.UNSUPPORTED,
    Status.OK,
)
KEY = ["case_key", "implementation"]
_SAME_IN_ALL = (
    "case_id",
    *AXES,
    "flop_count",
    "min_bytes",
    "ceiling_binds",
    "implementation_version",
    "repro",
)
_MEDIANS = (
    "median_s",
    "burst_median_s",
    "p95_s",
    "min_s",
    "first_call_s",
    "flop_per_s",
    "bytes_per_s",
    "ceiling_share",
)
_LARGEST = (
    "peak_alloc_bytes",
    "peak_rss_bytes",
    "output_bytes",
    "expected_alloc_bytes",
    *(f"{scope}_{measure}" for scope in ("o", "lse", "worst") for measure in ERROR_MEASURES),
)
_JOINED = ("reasons", "kernel", "mask_form", "notes", "flags", "stop_reason", "memory_method")


def cells_of(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per case and implementation, sorted by axes, with ``status``, ``num_passes``,
    ``num_ok`` and the columns of ``harness.load`` that a summary over passes can have.
    """
    groups = rows.groupby(KEY, sort=True)
    aggregated = groups.agg(
        **{name: (name, "first") for name in _SAME_IN_ALL},
        **{name: (name, "median") for name in _MEDIANS},
        **{name: (name, "max") for name in _LARGEST},
        **{name: (name, join_distinct) for name in _JOINED},
        status=("status", worst_status),
        num_passes=("pass_index", "nunique"),
        num_ok=("status", lambda found: int((found == Status.OK).sum())),
    ).reset_index()
    return _typed(aggregated, rows).sort_values([*AXES, *KEY], ignore_index=True)


def _typed(cells: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Aggregation loses types where there is nothing to aggregate: give each column its own."""
    types: dict[Any, Any] = {name: kind for name, kind in rows.dtypes.items() if name in cells}
    return cells.astype(types | {"num_passes": "Int64", "num_ok": "Int64"})


def worst_status(statuses: Iterable[str]) -> str:
    found = set(statuses)
    return next(status.value for status in STATUS_BY_SEVERITY if status.value in found)


def join_distinct(texts: Iterable[str]) -> str:
    """Distinct findings of several passes in the order in which they came, joined by `; `."""
    findings = (part for text in texts for part in text.split("; ") if part)
    return "; ".join(dict.fromkeys(findings))


def is_ok(cells: pd.DataFrame) -> pd.Series[bool]:
    return cells["status"] == Status.OK.value


def varying_axes(cells: pd.DataFrame) -> list[str]:
    """Axes that take more than one value, in their order; what a label must name.

    An axis that follows from others everywhere (kv_seq_len from seq_len, head_dim and scale from
    hidden_size and num_heads) is left out.
    """
    varying = [axis for axis in AXES if cells[axis].nunique() > 1]
    implied = {
        "num_kv_heads": bool((cells["num_kv_heads"] == cells["num_heads"]).all()),
        "kv_seq_len": bool((cells["kv_seq_len"] == cells["seq_len"]).all()),
        "head_dim": bool((cells["head_dim"] * cells["num_heads"] == cells["hidden_size"]).all()),
        "scale": bool(((cells["scale"] ** 2 * cells["head_dim"] - 1).abs() < 1e-9).all()),
    }
    return [axis for axis in varying if not implied.get(axis, False)]
