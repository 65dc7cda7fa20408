"""What has no figure, and why: cells that are not ``ok``, points that the plan left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.analysis.cells import is_ok
from harness.report import numbers
from harness.report.content import Content
from harness.report.tables import Field, Table
from harness.rows import Status

STATUS_WORDS = {
    Status.UNSUPPORTED: "unsupported",
    Status.INCORRECT: "WRONG",
    Status.OUT_OF_MEMORY: "out of mem",
    Status.TIMEOUT: "timeout",
    Status.CRASHED: "crashed",
    Status.ERROR: "error",
}


def failure_table(content: Content) -> Table | None:
    """Everything that is not ``ok``: implementation, status, reasons, and how many cases."""
    cells = content.cells[~is_ok(content.cells)]
    if not len(cells):
        return None
    num_cases = content.cells["case_id"].nunique()
    groups = cells.groupby(["implementation", "status", "reasons"], sort=True)["case_id"]
    lines = [
        _failure_line(str(name), str(status), str(reasons), _cases(ids, num_cases))
        for (name, status, reasons), ids in groups
    ]
    columns = ("implementation", "status", "reason", "cases")
    return Table("Not measured, and why", columns, tuple(lines), num_labels=4)


def _failure_line(name: str, status: str, reasons: str, cases: str) -> tuple[Field, ...]:
    is_bad = status != Status.UNSUPPORTED
    return (
        Field(name),
        Field(STATUS_WORDS[Status(status)], "bad" if is_bad else ""),
        Field(reasons or "no reason recorded"),
        Field(cases),
    )


def _cases(ids: pd.Series[str], num_cases: int) -> str:
    """One by its name, several by one of them, all of the run as that."""
    if len(ids) == 1:
        return str(ids.iloc[0])
    some = f"{len(ids)} cases, e.g. {ids.iloc[0]}"
    return some if len(ids) < num_cases else f"all {num_cases} cases"


def left_out_table(content: Content) -> Table | None:
    """Points of the sweep that can't exist or were absurd, by reason."""
    if not content.left_out:
        return None
    by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for axes, reason in content.left_out:
        by_reason.setdefault(reason, []).append(axes)
    lines = [
        (Field(reason), Field(numbers.count(len(points), "point")))
        for reason, points in sorted(by_reason.items())
    ]
    return Table("Points left out", ("reason", "points"), tuple(lines), num_labels=2)
