"""Every implementation against the reference, with interval and verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from harness.report import numbers
from harness.report.content import Content
from harness.report.tables import Field, Table, axis_columns, case_label, ratio_text


def comparison_table(content: Content) -> Table:
    """Every implementation against the reference, with interval and verdict."""
    cells = content.cells.set_index(["case_key", "implementation"])
    order = {key: position for position, key in enumerate(content.cells["case_key"].unique())}
    lines = [
        _comparison_line(content, comparison, cells)
        for comparison in sorted(
            content.comparisons.to_dict("records"),
            key=lambda c: (order[c["case_key"]], c["ratio"]),
        )
    ]
    against = content.baseline or "the reference"
    columns = ("implementation", "time", f"time / {against}", "verdict", "why")
    note = (
        f"Ratios of times: 0.5x takes half as long as {against}. [low, high] is the 95 % interval; "
        "* = surely different, perhaps by less than the margin. Verdicts are corrected for the "
        "number of comparisons."
    )
    return Table(
        f"Against {against}",
        (*axis_columns(content), *columns),
        tuple(lines),
        note,
        len(content.axes) + 1,
    )


def _comparison_line(
    content: Content, comparison: Mapping[Any, Any], cells: pd.DataFrame
) -> tuple[Field, ...]:
    cell = cells.loc[(comparison["case_key"], comparison["implementation"])]
    marks = {"faster": "best", "faster*": "best", "slower": "bad", "untrusted": "bad"}
    return (
        *map(Field, case_label(content, cell)),
        Field(comparison["implementation"]),
        Field(numbers.seconds(cell["median_s"])),
        Field(ratio_text(comparison)),
        Field(comparison["verdict"], marks.get(comparison["verdict"], "")),
        Field(comparison["why"], "quiet"),
    )
