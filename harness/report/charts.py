"""The charts of the HTML report, as Vega-Lite specifications over one named data set.

Built with altair, so that a wrong encoding fails here and not in a reader's browser. The page
fills in the data and the sizes; ``figure_svg`` draws one without a browser, for slides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Distinct for most kinds of colour vision, each with 3:1 contrast to white and to near-black.
PALETTE = (
    "#0072b2",
    "#d55e00",
    "#008f68",
    "#b8498f",
    "#9a7400",
    "#7b61ff",
    "#4f8a10",
    "#0a8a9f",
    "#a0522d",
    "#7a7f87",
)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_SECONDS = (
    "datum.value >= 1 ? format(datum.value, '~r') + ' s' : "
    "datum.value >= 1e-3 ? format(datum.value * 1e3, '~r') + ' ms' : "
    "format(datum.value * 1e6, '~r') + ' µs'"
)
_BYTES = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : "
    "format(datum.value / 1024, '.3~g') + ' KiB'"
)
TOOLTIP = (
    ("name", "implementation"),
    ("id", "case"),
    ("time", "time per call"),
    ("ratio", "time / reference"),
    ("verdict", "verdict"),
    ("memory", "extra memory"),
    ("error", "error"),
    ("ceiling", "of the ceiling"),
    ("repro", "repeat with"),
)


@dataclass(frozen=True)
class Measure:
    """What the facets can show on their vertical axis.

    Args:
        field: Field of a record; ``low`` and ``high`` bound it where it has an interval.
        label: Vega expression for the axis labels.
    """

    key: str
    title: str
    field: str
    low: str | None = None
    high: str | None = None
    label: str | None = None
    base: int | None = 10  # of the logarithmic axis; None: linear


MEASURES = (
    Measure("time", "Time per call", "t", "t_low", "t_high", _SECONDS),
    Measure("ratio", "Time / reference", "r", "r_low", "r_high"),
    Measure("memory", "Extra memory", "m", label=_BYTES, base=2),
    Measure("error", "Error in unit roundoffs", "e"),
    Measure("ceiling", "Share of the ceiling", "c", base=None),
)


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each implementation; they repeat after ten, the shapes after six."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def shapes(names: Sequence[str]) -> dict[str, str]:
    return {name: SHAPES[i % len(SHAPES)] for i, name in enumerate(names)}


def span_of(records: Sequence[Mapping[str, Any]], field: str) -> tuple[float, float]:
    """Smallest and largest value of a field, for the ticks of its axis."""
    found = [record[field] for record in records if record.get(field)]
    return (min(found), max(found)) if found else (1.0, 1.0)


def log_ticks(low: float, high: float, base: int) -> list[float]:
    """Round values on a logarithmic axis, from just below ``low`` to just above ``high``.

    Powers of the base where they are enough; for base 10 with 3, or with 2 and 5, between.
    """
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    step = max(1, (last - first) // 6)
    powers = [float(base) ** k for k in range(first, last + 1, step)]
    if base != 10 or step > 1 or last - first > 4:
        return powers
    factors = (1, 2, 5) if last - first <= 2 else (1, 3)
    return [float(f"{power * factor:.1g}") for power in powers for factor in factors]


def near_ticks(low: float, high: float) -> list[float]:
    """Round values between two that are less than a decade apart: about four, evenly spaced."""
    if low <= 0 or high / low >= 4:
        return log_ticks(low, high, 10)
    raw = max(high - low, high / 20) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{k * step:.6g}") for k in range(max(first, 1), last + 1)]


def line_chart(
    measure: Measure,
    names: Sequence[str],
    axis: str,
    values: Sequence[float],
    span: tuple[float, float],
) -> dict[str, Any]:
    """A measure along an axis, one line per implementation, intervals as bars.

    Args:
        values: Values of the axis, which are its ticks.
        span: Smallest and largest value of the measure.
    """
    import altair as alt

    x_scale = (
        alt.Scale(type="log", base=2, nice=False) if min(values, default=0) > 0 else alt.Scale()
    )
    x = alt.X("x:Q", title=axis, scale=x_scale, axis=alt.Axis(values=list(values), format="d"))
    axis_of_y = alt.Axis(labelExpr=measure.label) if measure.label else alt.Axis(format="~g")
    if measure.base:
        axis_of_y["values"] = log_ticks(*span, measure.base)
    y_scale = alt.Scale(type="log", base=measure.base) if measure.base else alt.Scale(zero=True)
    y = alt.Y(f"{measure.field}:Q", title=None, scale=y_scale, axis=axis_of_y)
    base = alt.Chart(alt.NamedData("cells")).encode(x=x, color=colour_of(names))
    base = base.transform_filter(f"isValid(datum.{measure.field})")
    marks = [
        base.mark_line(strokeWidth=1.5, interpolate="linear").encode(y=y),
        base.mark_point(filled=True, size=55, opacity=1).encode(
            y=y, shape=shape_of(names), tooltip=_tooltip()
        ),
    ]
    if measure.low and measure.high:
        bars = base.mark_rule(strokeWidth=1.5).encode(
            y=alt.Y(f"{measure.low}:Q", title=None), y2=alt.Y2(f"{measure.high}:Q")
        )
        marks.insert(1, bars)
    return plain(alt.layer(*marks))


def trade_chart(names: Sequence[str]) -> dict[str, Any]:
    """Time against memory of every cell, error as size: what is down and left costs less."""
    import altair as alt

    chart = (
        alt.Chart(alt.NamedData("cells"))
        .transform_filter("isValid(datum.b) && isValid(datum.m)")
        .mark_point(filled=True, opacity=0.8)
        .encode(
            x=alt.X(
                "b:Q",
                title="time / fastest of the case",
                scale=alt.Scale(type="log", base=2),
                axis=alt.Axis(format="~g"),
            ),
            y=alt.Y(
                "m:Q",
                title=None,
                scale=alt.Scale(type="log", base=2),
                axis=alt.Axis(labelExpr=_BYTES),
            ),
            size=alt.Size("e:Q", title="error, u", scale=alt.Scale(range=[40, 300]), legend=None),
            color=colour_of(names),
            shape=shape_of(names),
            tooltip=_tooltip(),
        )
    )
    return plain(chart)


def colour_of(names: Sequence[str]) -> Any:
    """The colour channel of implementations; the page's own legend names them."""
    import altair as alt

    scale = alt.Scale(domain=list(names), range=list(colours(names).values()))
    return alt.Color("name:N", scale=scale, legend=None)


def shape_of(names: Sequence[str]) -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(names), range=list(shapes(names).values()))
    return alt.Shape("name:N", scale=scale, legend=None)


def _tooltip() -> list[Any]:
    import altair as alt

    return [alt.Tooltip(f"{field}:N", title=title) for field, title in TOOLTIP]


def plain(chart: Any) -> dict[str, Any]:
    """The specification without altair's own theme: the page's colours come from the reader's."""
    specification: dict[str, Any] = chart.to_dict()
    specification.pop("config", None)
    specification.pop("$schema", None)
    return specification


def runtime() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script for a page without network."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def figure_svg(specification: Mapping[str, Any]) -> str:
    """Draw a chart as SVG without a browser."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(dict(specification)))


def figure_png(specification: Mapping[str, Any]) -> bytes:
    """Draw a chart as PNG without a browser, at twice its size."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(dict(specification), scale=2))
