"""A run, and the comparison of two, on a terminal of any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
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
from harness.report.drawing import print_table
from harness.report.exactness import exactness_table
from harness.report.gaps import failure_table, left_out_table
from harness.report.matrices import time_table
from harness.report.phrases import Sentence
from harness.report.tables import (
    choice_table,
    fixed_axes,
)
from harness.report.trends import trend_of, trend_sentences, trend_table


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
    print_table(exactness_table(content), console)
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
