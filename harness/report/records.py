"""What the page's script gets: one record per case and implementation, numbers and their text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.analysis.cells import varying_axes
from harness.analysis.pairs import log_times
from harness.columns import AXES
from harness.mask import MaskForm
from harness.report import numbers
from harness.report.content import Content
from harness.report.gaps import STATUS_WORDS
from harness.report.tables import AXIS_LABELS, axis_text, ratio_text
from harness.rows import Status
from harness.statistics.intervals import effect_of, interval

_ALONG = ("seq_len", "num_heads", "hidden_size", "batch_size", "kv_seq_len", "head_dim", "threads")
_DIGITS = 6


def main_axis(content: Content) -> str:
    """The axis that charts are drawn along: the length, where it varies."""
    return next((axis for axis in _ALONG if axis in content.axes), "seq_len")


def facet_axes(content: Content) -> list[str]:
    """Axes that split the charts: all that vary but the main one."""
    main = main_axis(content)
    return [axis for axis in varying_axes(content.cells) if axis != main]


def records_of(content: Content) -> list[dict[str, Any]]:
    """Records in the order of the cells; what was not measured is null."""
    axis, facets = main_axis(content), facet_axes(content)
    comparisons = {
        (c["case_key"], c["implementation"]): c for c in content.comparisons.to_dict("records")
    }
    spans = _spans(content)
    quickest = _quickest(content)
    best = dict(zip(content.winners["case_key"], content.winners["best"], strict=True))
    found = []
    for cell in content.cells.to_dict("records"):
        key = (str(cell["case_key"]), str(cell["implementation"]))
        comparison = comparisons.get(key)
        is_ok = cell["status"] == Status.OK.value
        record = _identity(content, cell, axis, facets)
        record |= _texts(cell, comparison, is_ok)
        if is_ok:
            record |= _figures(cell, comparison, spans.get(key), quickest[key[0]])
        record["best"] = key[1] in best.get(key[0], ())
        found.append({name: _rounded(value) for name, value in record.items()})
    return found


def _identity(
    content: Content, cell: Mapping[Any, Any], axis: str, facets: Sequence[str]
) -> dict[str, Any]:
    return {
        "key": cell["case_key"],
        "id": cell["case_id"],
        "name": cell["implementation"],
        "x": cell[axis],
        "facet": facet_text(cell, facets),
        "axes": {name: axis_text(cell[name]) for name in content.axes},
        "status": cell["status"],
        "repro": cell["repro"],
    }


def facet_text(cell: Mapping[Any, Any], facets: Sequence[str]) -> str:
    return ", ".join(f"{AXIS_LABELS.get(a, a)} {axis_text(cell[a])}" for a in facets)


def _texts(
    cell: Mapping[Any, Any], comparison: Mapping[Any, Any] | None, is_ok: bool
) -> dict[str, str]:
    status = Status(cell["status"])
    if not is_ok:
        word, reasons = STATUS_WORDS[status], str(cell["reasons"])
        return {"time": word, "why": reasons, "verdict": word}
    share = cell["ceiling_share"]
    ceiling = (
        "" if numbers.is_absent(share) else f"{numbers.percent(share)} {cell['ceiling_binds']}"
    )
    flags = str(cell["flags"])
    return {
        "time": numbers.seconds(cell["median_s"]),
        "ratio": ratio_text(comparison) if comparison is not None else "1x (reference)",
        "verdict": str(comparison["verdict"]) if comparison is not None else "reference",
        "why": _each_once(str(comparison["why"]) if comparison else "", flags),
        "memory": numbers.byte_count(cell["peak_alloc_bytes"]),
        "error": numbers.in_roundoffs(cell["worst_scaled_u"]),
        "ceiling": ceiling or numbers.ABSENT,
        "kernel": str(cell["kernel"]),
        "form": str(cell["mask_form"]) if cell["mask"] != MaskForm.NONE.value else "",
    }


def _each_once(*texts: str) -> str:
    """One text of parts between semicolons: a flag that already barred the verdict is said once."""
    parts = (part for text in texts for part in text.split("; ") if part)
    return "; ".join(dict.fromkeys(parts))


def _figures(
    cell: Mapping[Any, Any],
    comparison: Mapping[Any, Any] | None,
    span: tuple[float, float] | None,
    quickest_s: float,
) -> dict[str, Any]:
    low, high = span or (None, None)
    figures = {
        "t": cell["median_s"],
        "t_low": low,
        "t_high": high,
        "b": float(cell["median_s"]) / quickest_s,
        "m": cell["peak_alloc_bytes"] or None,
        "e": cell["worst_scaled_u"],
        "c": cell["ceiling_share"],
        "share": cell["worst_bound_share"],
        "p95": cell["p95_s"],
        "first": cell["first_call_s"],
        "flops": cell["flop_per_s"],
    }
    if comparison is None:
        return figures | {"r": 1.0}
    bounds = {"r": "ratio", "r_low": "ratio_low", "r_high": "ratio_high"}
    return figures | {name: comparison[column] for name, column in bounds.items()}


def _spans(content: Content) -> dict[tuple[str, str], tuple[float, float]]:
    """95 % intervals of absolute times."""
    found = {}
    for key, processes in log_times(content.rows).items():
        shown = interval(effect_of(processes))
        if math.isfinite(shown.half_width):
            found[key] = (math.exp(shown.low), math.exp(shown.high))
    return found


def _quickest(content: Content) -> dict[str, float]:
    ok = content.cells[content.cells["status"] == Status.OK.value]
    return {
        str(key): float(value) for key, value in ok.groupby("case_key")["median_s"].min().items()
    }


def _rounded(value: Any) -> Any:
    """JSON without noise: whole numbers as they are, others to six digits, null where missing."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (str, bool)):
        return value
    if numbers.is_absent(value):
        return None
    if isinstance(value, (int, np.integer)):
        return int(value)
    number = float(f"{float(value):.{_DIGITS}g}")
    return int(number) if number == int(number) and abs(number) < 2**53 else number


def axis_names() -> dict[str, str]:
    return {axis: AXIS_LABELS.get(axis, axis) for axis in AXES}
