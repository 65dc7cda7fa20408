"""Stored runs made readable: on the terminal and as files. Reads rows only; needs no torch.

::

    content    one run, analysed once
    tables     its tables as plain strings       numbers   figures as people read them
    terminal, markdown, files                    the same tables in each format
    answer     the sentences of the first screen, made of recommendation and phrases
    page, records, charts                        the HTML page and what its script gets
    trend_page, trend_charts                     the same for many runs; frame: what pages share
    between, trends                              two runs, many runs
    decision   constraints, workloads, predictions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from harness.analysis.decide import Constraints, Decision
    from harness.analysis.predict import Prediction
    from harness.analysis.workload import Demand

__all__ = [
    "render_compare",
    "render_decision",
    "render_prediction",
    "render_terminal",
    "render_trend",
    "write_reports",
    "write_trend",
]


def render_terminal(run: Path, console: Console) -> None:
    """Print what a run found; see ``harness.report.terminal``."""
    from harness.report import terminal  # pandas only when something is drawn

    terminal.render_terminal(run, console)


def render_compare(
    run: Path,
    other: Path | None,
    console: Console,
    *,
    against: str = "baseline",
    margin: float | None = None,
    fail_on: Sequence[str] = (),
) -> list[str]:
    """Print the comparison within ``run``, or of ``run`` (old) with ``other`` (new).

    Args:
        against: Reference within a run: ``baseline``, ``best`` or an implementation's name.
        margin: Smallest difference that matters, as a fraction; the runs' own when left out.
        fail_on: Findings of ``harness.analysis.gate.FAIL_ON``.

    Returns:
        A sentence for each finding of the kinds in ``fail_on``; none: the comparison passes.
    """
    from harness.report import terminal

    return terminal.render_compare(run, other, console, against, margin, fail_on)


def render_decision(
    run: Path,
    console: Console,
    *,
    constraints: Constraints,
    workload: Sequence[Demand] | None = None,
    margin: float | None = None,
) -> Decision:
    """Print what to use, under constraints and for a workload; see ``harness.analysis.decide``."""
    from harness.report import terminal

    return terminal.render_decision(run, console, constraints, workload, margin)


def render_prediction(run: Path, console: Console, axes: Mapping[str, object]) -> list[Prediction]:
    """Print what every implementation would take on a case; see ``harness.analysis.predict``."""
    from harness.report import terminal

    return terminal.render_prediction(run, console, axes)


def render_trend(runs: Sequence[Path], console: Console) -> None:
    """Print how the cells of several runs changed over time."""
    from harness.report import terminal

    terminal.render_trend(runs, console)


def write_reports(run: Path, formats: Iterable[str], out: Path | None = None) -> list[Path]:
    """Write a run's report in ``formats``; see ``harness.report.files``."""
    from harness.report import files

    return files.write_reports(run, formats, out)


def write_trend(runs: Sequence[Path], formats: Iterable[str], out: Path) -> list[Path]:
    """Write how the cells of several runs changed over time; see ``harness.report.files``."""
    from harness.report import files

    return files.write_trend(runs, formats, out)
