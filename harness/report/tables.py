"""The tables of a report as plain strings; the terminal, Markdown and HTML draw the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.analysis.cells import is_ok
from harness.report import numbers
from harness.report.content import Content
from harness.rows import Status

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
STATUS_WORDS = {
    Status.UNSUPPORTED: "unsupported",
    Status.INCORRECT: "WRONG",
    Status.OUT_OF_MEMORY: "out of mem",
    Status.TIMEOUT: "timeout",
    Status.CRASHED: "crashed",
    Status.ERROR: "error",
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
    return ", ".join(shared)


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


def failure_table(content: Content) -> Table | None:
    """Everything that is not ``ok``: implementation, status, reasons, and how many cases."""
    cells = content.cells[~is_ok(content.cells)]
    if not len(cells):
        return None
    groups = cells.groupby(["implementation", "status", "reasons"], sort=True)["case_id"]
    lines = [
        _failure_line(str(name), str(status), str(reasons), ids)
        for (name, status, reasons), ids in groups
    ]
    columns = ("implementation", "status", "reason", "cases")
    return Table("Not measured, and why", columns, tuple(lines), num_labels=4)


def _failure_line(name: str, status: str, reasons: str, ids: pd.Series[str]) -> tuple[Field, ...]:
    is_bad = status != Status.UNSUPPORTED
    return (
        Field(name),
        Field(STATUS_WORDS[Status(status)], "bad" if is_bad else ""),
        Field(reasons or "no reason recorded"),
        Field(_some_cases(ids)),
    )


def _some_cases(ids: pd.Series[str]) -> str:
    return str(ids.iloc[0]) if len(ids) == 1 else f"{len(ids)} cases, e.g. {ids.iloc[0]}"


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


def all_tables(content: Content) -> list[Table]:
    """Every table of a full report, in reading order."""
    optional = (failure_table(content), left_out_table(content))
    return [
        choice_table(content),
        time_table(content),
        comparison_table(content),
        memory_table(content),
        error_table(content),
        *(table for table in optional if table is not None),
    ]
