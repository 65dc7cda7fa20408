"""Times, memory and errors of everything that was measured: cases down, implementations across."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from harness.report import numbers
from harness.report.content import Content
from harness.report.gaps import STATUS_WORDS
from harness.report.tables import Field, Table, axis_columns, case_label, cells_by_case
from harness.rows import Status


def time_table(content: Content) -> Table:
    """Seconds per call of everything that was measured."""
    return _matrix(
        content, "Time per call", "median_s", numbers.seconds, "Bold: the best set of the case."
    )


def memory_table(content: Content) -> Table:
    """Extra memory of one call."""
    note = "Allocator peak of one call above its inputs, output included."
    return _matrix(
        content, "Extra memory", "peak_alloc_bytes", numbers.byte_count, note, is_ranked=False
    )


def error_table(content: Content) -> Table:
    """Error against float64, in units of the dtype."""
    note = "Largest |error| / (P|V|) of output and gradients in unit roundoffs of the dtype."
    return _matrix(content, "Error", "worst_scaled_u", numbers.in_roundoffs, note, is_ranked=False)


def _matrix(
    content: Content,
    title: str,
    column: str,
    text: Callable[[Any], str],
    note: str,
    is_ranked: bool = True,
) -> Table:
    names = measured_implementations(content)
    best = dict(zip(content.winners["case_key"], content.winners["best"], strict=True))
    lines = []
    for key, cells in cells_by_case(content):
        by_name = cells.set_index("implementation")
        winning = best.get(key, ()) if is_ranked else ()
        fields = [_matrix_field(by_name, name, column, text, name in winning) for name in names]
        lines.append((*map(Field, case_label(content, cells.iloc[0])), *fields))
    columns = (*axis_columns(content), *names)
    return Table(title, columns, tuple(lines), note, len(content.axes))


def measured_implementations(content: Content) -> list[str]:
    """Those that are more than a reason in every case."""
    tried = content.cells[content.cells["status"] != Status.UNSUPPORTED.value]
    return [name for name in content.implementations if name in set(tried["implementation"])]


def _matrix_field(
    cells: pd.DataFrame, name: str, column: str, text: Callable[[Any], str], is_best: bool
) -> Field:
    if name not in cells.index:
        return Field(numbers.ABSENT, "quiet")
    status = Status(str(cells.loc[name, "status"]))
    if status is Status.UNSUPPORTED:
        return Field(STATUS_WORDS[status], "quiet")
    if status is not Status.OK:
        return Field(STATUS_WORDS[status], "bad")
    return Field(text(cells.loc[name, column]), "best" if is_best else "")
