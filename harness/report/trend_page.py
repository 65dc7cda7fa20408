"""Several runs over time as one HTML page: what changed, when, and every figure behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.analysis.trend import Trend
from harness.report import charts, numbers, trend_charts
from harness.report.content import machine_line
from harness.report.frame import page_of
from harness.report.trends import runs_table, trend_rule, trend_sentences, trend_table

MAX_CASES = 24


def trend_html(found: Trend) -> str:
    """The whole page, scripts and styles inside.

    Raises:
        ImportError: altair or vl-convert is not installed.
    """
    names = list(dict.fromkeys(str(name) for _, name in found.table.index))
    return page_of(
        "trend.html.j2",
        "trend.js",
        names,
        _data(found, names),
        title="mha-bench: over time",
        sentences=trend_sentences(found),
        machine=machine_line(found.environment),
        rule=trend_rule(found),
        tables=[table for table in (runs_table(found), trend_table(found)) if table.lines],
    )


def _data(found: Trend, names: Sequence[str]) -> dict[str, Any]:
    records = trend_records(found)
    changed = [step.case_id for step in found.steps]
    cases = list(dict.fromkeys([*changed, *(record["id"] for record in records)]))
    return {
        "records": records,
        "cases": cases[:MAX_CASES],
        "num_cases": len(cases),
        "lines": {
            case: trend_charts.time_chart(names, found.runs, charts.span_of(of_case, "t"))
            for case in cases[:MAX_CASES]
            if (of_case := [record for record in records if record["id"] == case])
        },
        "together": trend_charts.together_chart(names, found.runs, charts.span_of(records, "r")),
    }


def trend_records(found: Trend) -> list[dict[str, Any]]:
    """One record per cell and run that measured it, as the page's script gets it."""
    steps = {(step.case_id, step.implementation, step.after): step for step in found.steps}
    records = []
    for line in found.table.reset_index().to_dict("records"):
        case_id, name = str(line["case_id"]), str(line["implementation"])
        measured = {run: float(line[run]) for run in found.runs if not numbers.is_absent(line[run])}
        middle = _median(list(measured.values()))
        for run, seconds in measured.items():
            step = steps.get((case_id, name, run))
            records.append(
                {
                    "id": case_id,
                    "name": name,
                    "cell": f"{case_id} {name}",
                    "run": run,
                    "t": float(f"{seconds:.6g}"),
                    "r": float(f"{seconds / middle:.6g}"),
                    "time": numbers.seconds(seconds),
                    "step": f"{step.ratio:.2f}x from here on" if step else "",
                }
            )
    return records


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return math.sqrt(ordered[(len(ordered) - 1) // 2] * ordered[len(ordered) // 2])
