"""The charts of a trend: seconds by run, one line per cell, steps marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.report import charts

_TOOLTIP = (
    ("name", "implementation"),
    ("id", "case"),
    ("run", "run"),
    ("time", "time per call"),
    ("step", "step"),
)
_SHORT = 18  # longer names of runs are cut in the middle: folders start alike and end alike


def time_chart(
    names: Sequence[str], runs: Sequence[str], span: tuple[float, float]
) -> dict[str, Any]:
    """Seconds of one case by run."""
    label = charts.MEASURES[0].label
    return _chart("t", names, runs, "name:N", {"labelExpr": label}, span)


def together_chart(
    names: Sequence[str], runs: Sequence[str], span: tuple[float, float]
) -> dict[str, Any]:
    """Every cell over its own median, by run."""
    return _chart("r", names, runs, "cell:N", {"format": "~g"}, span)


def _chart(
    field: str,
    names: Sequence[str],
    runs: Sequence[str],
    line: str,
    axis: dict[str, Any],
    span: tuple[float, float],
) -> dict[str, Any]:
    import altair as alt

    ticks = charts.near_ticks(*span)
    x_axis = alt.Axis(labelAngle=-30, labelExpr=_short_label(), labelOverlap=True)
    x = alt.X("run:O", title=None, sort=list(runs), scale=alt.Scale(domain=list(runs)), axis=x_axis)
    y = alt.Y(
        f"{field}:Q",
        title=None,
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(values=ticks, **axis),
    )
    shown = [alt.Tooltip(f"{name}:N", title=title) for name, title in _TOOLTIP]
    base = alt.Chart(alt.NamedData("cells")).encode(
        x=x, y=y, color=charts.colour_of(names), tooltip=shown
    )
    marks = [
        base.mark_line(strokeWidth=1.5).encode(detail=line),
        base.mark_point(filled=True, size=50, opacity=1).encode(shape=charts.shape_of(names)),
        base.transform_filter("datum.step").mark_point(filled=False, size=260, strokeWidth=2),
    ]
    return charts.plain(alt.layer(*marks))


def _short_label() -> str:
    half = _SHORT // 2 - 1
    return (
        f"length(datum.label) <= {_SHORT} ? datum.label : "
        f"slice(datum.label, 0, {half}) + '…' + slice(datum.label, -{half})"
    )
