"""The tables of a report as plain strings; the terminal, Markdown and HTML draw the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.report import numbers
from harness.report.content import Content

AXIS_LABELS = {
    "batch_size": "batch",
    "hidden_size": "hidden",
    "num_heads": "heads",
    "num_kv_heads": "kv heads",
    "head_dim": "head dim",
    "seq_len": "length",
    "kv_seq_len": "kv length",
    "dropout_p": "dropout",
}


@dataclass(frozen=True)
class Field:
    """One cell of a table: its text, and ``best``, ``bad``, ``quiet`` or nothing."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a title and a sentence on how to read it; numbers are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[Field, ...], ...]
    note: str = ""
    num_labels: int = 0


def case_label(content: Content, line: Mapping[Any, Any] | pd.Series[Any]) -> tuple[str, ...]:
    """The varying axes of a case, as they stand in a table."""
    return tuple(axis_text(line[axis]) for axis in content.axes)


def axis_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def axis_columns(content: Content) -> tuple[str, ...]:
    return tuple(AXIS_LABELS.get(axis, axis) for axis in content.axes)


def fixed_axes(content: Content) -> str:
    """What all cases share, in one line: ``batch 1, float32, mask none, forward, cpu``."""
    if not len(content.cells):
        return "nothing was measured"
    first = content.cells.iloc[0]
    named = {
        "hidden_size": "hidden {}",
        "num_heads": "{} heads",
        "seq_len": "length {}",
        "batch_size": "batch {}",
        "dtype": "{}",
        "mask": "mask {}",
        "scope": "scope {}",
        "mode": "{}",
        "inputs": "{} inputs",
        "cache": "{} cache",
        "device": "{}",
        "threads": "{} threads",
    }
    shared = [text.format(first[axis]) for axis, text in named.items() if axis not in content.axes]
    return ", ".join(shared).replace(", 1 threads", ", 1 thread").replace(" 1 heads", " 1 head")


def cells_by_case(content: Content) -> Iterable[tuple[str, pd.DataFrame]]:
    """Cases in the order of their axes, each with its cells."""
    return ((str(key), cells) for key, cells in content.cells.groupby("case_key", sort=False))


def choice_table(content: Content) -> Table:
    """What to use where: one line per case with the best set, its time, memory and error."""
    best = {line["case_key"]: line for line in content.winners.to_dict("records")}
    comparisons = content.comparisons.set_index(["case_key", "implementation"])
    lines = [
        _choice_line(content, cells, best[key], comparisons)
        for key, cells in cells_by_case(content)
    ]
    baseline = content.baseline or "baseline"
    columns = ("use", "time", f"time / {baseline}", "next best", "extra memory", "error")
    note = (
        "`a = b`: the same within the margin; `a ? b`: not told apart yet. Times are medians of "
        "bursts' minima; error is the largest of |o - float64| / (P|V|) in unit roundoffs u."
    )
    return Table(
        "What to use", (*axis_columns(content), *columns), tuple(lines), note, len(content.axes)
    )


def _choice_line(
    content: Content, cells: pd.DataFrame, winner: Mapping[Any, Any], comparisons: pd.DataFrame
) -> tuple[Field, ...]:
    label = [Field(text) for text in case_label(content, cells.iloc[0])]
    if winner["state"] == "none":
        return (*label, Field("nothing ran", "bad"), *[Field(numbers.ABSENT, "quiet")] * 5)
    cell = cells.set_index("implementation").loc[winner["fastest"]]
    key = (cell["case_key"], winner["fastest"])
    against = "1x" if key not in comparisons.index else ratio_text(comparisons.loc[key])
    following = numbers.ABSENT
    if winner["runner_up"] != "none":
        bounds = (winner["runner_up_ratio"], winner["runner_up_low"], winner["runner_up_high"])
        following = f"{winner['runner_up']} {numbers.ratio(*bounds)}"
    return (
        *label,
        Field(best_text(content, winner), "best"),
        Field(numbers.seconds(cell["median_s"])),
        Field(against),
        Field(following, "quiet"),
        Field(numbers.byte_count(cell["peak_alloc_bytes"])),
        Field(numbers.in_roundoffs(cell["worst_scaled_u"])),
    )


def best_names(content: Content, winner: Mapping[Any, Any]) -> list[str]:
    """The best set, the fastest first; of equals, the one first that is faster in more cases."""
    if winner["state"] != "tie":
        return list(winner["best"])
    return [name for name in content.implementations if name in winner["best"]]


def best_text(content: Content, winner: Mapping[Any, Any]) -> str:
    """The best set in words: ``flash = sdpa``, or ``flash ? sdpa`` where it is not resolved.

    Sets of more than three are cut: ``flash ? sdpa ? 3 more``.
    """
    names = best_names(content, winner)
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return (" = " if winner["state"] == "tie" else " ? ").join(names) or "none"


def ratio_text(comparison: Mapping[str, Any] | pd.Series[Any]) -> str:
    """Ratio with interval; the processes one by one where they disagree."""
    if comparison["multimodal"]:
        return f"{numbers.process_ratios(comparison['process_ratios'])} by process"
    return numbers.ratio(comparison["ratio"], comparison["ratio_low"], comparison["ratio_high"])
