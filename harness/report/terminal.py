"""A run, and the comparison of two, on a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from harness.analysis.between import RunComparison
from harness.analysis.decide import Constraints, Decision, decide
from harness.analysis.gate import breaches_between, breaches_within, check_fail_on
from harness.analysis.predict import Prediction, predict
from harness.analysis.workload import Demand
from harness.report.answer import main_sentences
from harness.report.between import between_table, comparison_of, sentences
from harness.report.comparisons import comparison_table
from harness.report.content import Content, content_of, header_lines
from harness.report.decision import decision_sentences, decision_tables, prediction_table
from harness.report.gaps import failure_table, left_out_table
from harness.report.matrices import time_table
from harness.report.phrases import Sentence
from harness.report.tables import (
    Field,
    Table,
    choice_table,
    fixed_axes,
)
from harness.report.trends import trend_of, trend_sentences, trend_table

_STYLES = {"best": "bold green", "bad": "red", "quiet": "dim", "": ""}
_OPTIONAL = ("next best", "extra memory", "error", "why")


def render_terminal(run: Path, console: Console) -> None:
    """Print what a sweep found: header, what to use, all times, failures with reasons."""
    content = content_of(run)
    print_header(content, console)
    decision = content.decision
    console.print()
    _print_sentences(main_sentences(content, decision), console)
    print_table(choice_table(content), console)
    print_table(time_table(content), console)
    for table in (failure_table(content), left_out_table(content)):
        if table is not None:
            print_table(table, console)


def print_header(content: Content, console: Console) -> None:
    for line in header_lines(content):
        style = "bold red" if line.startswith("UNTRUSTED") else ""
        console.print(Text(line, style=style))
    console.print(Text(f"All cases: {fixed_axes(content)}", style="dim"))


def _print_sentences(found: Sequence[Sentence], console: Console) -> None:
    """The first one is the answer and stands out."""
    for position, sentence in enumerate(found):
        console.print(Text(sentence.text, style="bold" if position == 0 else ""))


def print_table(table: Table, console: Console) -> None:
    """Draw a table; what is too wide loses less important columns, or comes in several blocks."""
    for candidate in _narrower(table):
        if _fits(candidate, console):
            _print_drawn([candidate], console)
            return
    blocks = _blocks(table, console)
    if blocks:
        _print_drawn(blocks, console)
    else:
        _print_stacked(table, console)


def _print_drawn(tables: Sequence[Table], console: Console) -> None:
    for table in tables:
        console.print()
        console.print(_draw(table))
    if tables[-1].note:
        console.print(Text(tables[-1].note, style="dim"))


def _narrower(table: Table) -> Iterator[Table]:
    """The table, and then without one optional column after the other."""
    yield table
    for name in _OPTIONAL:
        if name in table.columns:
            at = table.columns.index(name)
            table = _selected(table, [i for i in range(len(table.columns)) if i != at])
            yield table


def _selected(table: Table, positions: Sequence[int]) -> Table:
    columns = tuple(table.columns[i] for i in positions)
    lines = tuple(tuple(line[i] for i in positions) for line in table.lines)
    return replace(table, columns=columns, lines=lines)


def _fits(table: Table, console: Console) -> bool:
    """Whether no figure would be broken; a table of words may wrap them."""
    is_text = table.num_labels == len(table.columns)
    unbounded = console.options.update(max_width=10_000)  # else the answer is cut to the width
    return is_text or console.measure(_draw(table), options=unbounded).maximum <= console.width


def _blocks(table: Table, console: Console) -> list[Table]:
    """The table cut between columns, labels repeated; empty where one column alone is too wide."""
    labels, blocks, start = list(range(table.num_labels)), [], table.num_labels
    while start < len(table.columns):
        end = len(table.columns)
        while end > start and not _fits(_selected(table, [*labels, *range(start, end)]), console):
            end -= 1
        if end == start:
            return []
        blocks.append(_selected(table, [*labels, *range(start, end)]))
        start = end
    return blocks


def _draw(table: Table) -> RichTable:
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE,
                      pad_edge=False, padding=(0, 1))  # fmt: skip
    is_text = table.num_labels == len(table.columns)
    for position, name in enumerate(table.columns):
        right = position >= table.num_labels or (not is_text and _is_number(table, position))
        drawn.add_column(
            name, justify="right" if right else "left", overflow="fold", no_wrap=not is_text
        )
    for line in table.lines:
        drawn.add_row(*(_text(field) for field in line))
    return drawn


def _is_number(table: Table, position: int) -> bool:
    return all(line[position].text.replace(".", "").isdigit() for line in table.lines)


def _text(field: Field) -> Text:
    return Text(field.text, style=_STYLES[field.mark])


def _print_stacked(table: Table, console: Console) -> None:
    """One paragraph a line, for terminals too narrow for columns."""
    console.print()
    console.print(Text(table.title, style="bold"))
    for line in table.lines:
        labels = ", ".join(
            f"{name} {field.text}"
            for name, field in zip(table.columns, line[: table.num_labels], strict=False)
        )
        console.print(Text(labels, style="underline"))
        for name, field in list(zip(table.columns, line, strict=True))[table.num_labels :]:
            console.print(Text.assemble(f"  {name}: ", _text(field)))
    if table.note:
        console.print(Text(table.note, style="dim"))


def render_compare(
    run: Path,
    other: Path | None,
    console: Console,
    against: str,
    margin: float | None,
    fail_on: Sequence[str],
) -> list[str]:
    """Print a comparison and return what ``fail_on`` finds in it."""
    kinds = check_fail_on(fail_on)
    if other is not None:
        comparison = comparison_of(run, other, margin)
        print_comparison(comparison, console)
        return breaches_between(comparison, kinds)
    content = content_of(run, against, margin)
    print_header(content, console)
    print_table(comparison_table(content), console)
    failures = failure_table(content)
    if failures is not None:
        print_table(failures, console)
    return breaches_within(content.cells, content.comparisons, kinds)


def print_comparison(comparison: RunComparison, console: Console) -> None:
    """What kind of comparison it is, and its cells."""
    for sentence in sentences(comparison):
        console.print(Text(sentence))
    print_table(between_table(comparison), console)


def render_decision(
    run: Path,
    console: Console,
    constraints: Constraints,
    workload: Sequence[Demand] | None,
    margin: float | None,
) -> Decision:
    """Print what to use under constraints and for a workload."""
    content = content_of(run, margin=margin)
    decision = decide(content.rows, constraints, workload, content.wanted_margin)
    print_header(content, console)
    console.print()
    _print_sentences(decision_sentences(content, decision), console)
    for table in decision_tables(content, decision):
        print_table(table, console)
    return decision


def render_prediction(run: Path, console: Console, axes: Mapping[str, object]) -> list[Prediction]:
    """Print what every implementation would take on a case that was not measured."""
    content = content_of(run)
    predictions = predict(content.rows, **axes)  # type: ignore[arg-type]
    print_header(content, console)
    print_table(prediction_table(predictions), console)
    return predictions


def render_trend(runs: Sequence[Path], console: Console) -> None:
    """Print how cells changed over several runs."""
    found = trend_of(runs)
    for sentence in trend_sentences(found):
        console.print(Text(sentence))
    print_table(trend_table(found), console)
