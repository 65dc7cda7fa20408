"""The HTML report: one file without network, made of the same tables as every other format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.analysis.decide import Decision
from harness.report import charts
from harness.report.answer import answer
from harness.report.comparisons import comparison_table
from harness.report.content import Content, header_lines
from harness.report.decision import crossover_table, regret_table
from harness.report.exactness import exactness_table
from harness.report.frame import page_of
from harness.report.gaps import failure_table, left_out_table
from harness.report.matrices import measured_implementations
from harness.report.records import facet_axes, facet_text, main_axis, records_of
from harness.report.tables import (
    AXIS_LABELS,
    Table,
    axis_text,
    best_names,
    best_text,
    fixed_axes,
)
from harness.report.trades import front_table, heads_table, modes_table, start_table

MAX_FACETS = 24


def html_of(content: Content) -> str:
    """The whole page, scripts and styles inside.

    Raises:
        ImportError: altair or vl-convert is not installed.
    """
    decision = content.decision
    names = measured_implementations(content)
    return page_of(
        "page.html.j2",
        "page.js",
        names,
        _data(content, names),
        title=f"mha-bench: {content.run.name}",
        sentences=answer(content, decision),
        untrusted=not content.control.trusted,
        header=list(header_lines(content)),
        fixed=fixed_axes(content),
        measures=charts.MEASURES,
        winner_map=_winner_map(content),
        tables=_tables(content, decision),
    )


def _data(content: Content, names: Sequence[str]) -> dict[str, Any]:
    axis = main_axis(content)
    records = records_of(content)
    values = sorted({record["x"] for record in records})
    label = AXIS_LABELS.get(axis, axis)
    facets = list(dict.fromkeys(record["facet"] for record in records))
    lines = {
        measure.key: charts.line_chart(
            measure, names, label, values, charts.span_of(records, measure.field)
        )
        for measure in charts.MEASURES
    }
    return {
        "records": records,
        "names": list(names),
        "facets": facets[:MAX_FACETS],
        "num_facets": len(facets),
        "axes": [[axis, AXIS_LABELS.get(axis, axis)] for axis in content.axes],
        "lines": lines,
        "trade": charts.trade_chart(names),
    }


def _winner_map(content: Content) -> Mapping[str, Any]:
    """Best sets as a grid: lines are what splits the charts, columns the main axis."""
    axis, facets = main_axis(content), facet_axes(content)
    winners = {w["case_key"]: w for w in content.winners.to_dict("records")}
    values: dict[Any, None] = {}
    lines: dict[str, dict[Any, Mapping[str, Any]]] = {}
    for case in content.cells.drop_duplicates("case_key").to_dict("records"):
        winner = winners[case["case_key"]]
        values[case[axis]] = None
        lines.setdefault(facet_text(case, facets), {})[case[axis]] = {
            "key": case["case_key"],
            "text": best_text(content, winner),
            "fastest": next(iter(best_names(content, winner)), "none"),
            "state": winner["state"],
        }
    columns = sorted(values)
    return {
        "axis": AXIS_LABELS.get(axis, axis),
        "columns": [axis_text(value) for value in columns],
        "lines": [(name, [cells.get(value) for value in columns]) for name, cells in lines.items()],
    }


def _tables(content: Content, decision: Decision) -> list[Table]:
    optional = (
        regret_table(decision),
        crossover_table(decision),
        front_table(content),
        heads_table(content),
        start_table(content),
        modes_table(content),
        comparison_table(content),
        exactness_table(content),
        failure_table(content),
        left_out_table(content),
    )
    return [table for table in optional if table is not None and table.lines]
