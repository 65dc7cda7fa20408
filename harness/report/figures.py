"""A figure for slides: time along the main axis, one panel per group of cases."""

from __future__ import annotations

from typing import Any

from harness.report import charts
from harness.report.content import Content
from harness.report.matrices import measured_implementations
from harness.report.records import main_axis, records_of
from harness.report.tables import AXIS_LABELS

_COLUMNS = 2
_MAX_PANELS = 12


def time_figure(content: Content) -> dict[str, Any]:
    """Vega-Lite specification with its data inside, on white, with a legend.

    Raises:
        ImportError: altair is not installed.
    """
    records = [record for record in records_of(content) if record["status"] == "ok"]
    axis = main_axis(content)
    measure = charts.MEASURES[0]
    chart = charts.line_chart(
        measure,
        measured_implementations(content),
        AXIS_LABELS.get(axis, axis),
        sorted({record["x"] for record in records}),
        charts.span_of(records, measure.field),
    )
    panels = [
        {
            **chart,
            "title": facet or content.run.name,
            "width": 360,
            "height": 240,
            "transform": [{"filter": {"field": "facet", "equal": facet}}],
        }
        for facet in list(dict.fromkeys(record["facet"] for record in records))[:_MAX_PANELS]
    ]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "background": "white",
        "datasets": {"cells": records},
        "columns": _COLUMNS,
        "concat": [_with_legend(panel) for panel in panels],
    }


def _with_legend(panel: dict[str, Any]) -> dict[str, Any]:
    """The page draws its own legend; a figure needs one inside."""
    layers = []
    for layer in panel["layer"]:
        encoding = dict(layer["encoding"])
        for channel in ("color", "shape"):
            if channel in encoding:
                legend = {"title": None, "orient": "bottom"}
                encoding[channel] = {**encoding[channel], "legend": legend}
        layers.append({**layer, "encoding": encoding})
    return {**panel, "layer": layers}
