"""What is said at the end of a sweep: its table, where everything is, what to try next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from harness.planning.config import RunConfig
from harness.report import render_terminal, write_reports
from harness.report.files import MissingExtraError
from harness.rows import Row
from harness.store import read_rows


def close(run: Path, config: RunConfig) -> int:
    """Print the run's table and what follows; 1 where a row's status is among ``fail_on``."""
    console = Console()
    console.print()
    render_terminal(run, console)
    for line in (*_report(run), *_next_steps(run, config)):
        _say(console, line)
    failing = [row for row in read_rows(run) if row.status in config.fail_on]
    if failing:
        _say(Console(stderr=True), _failing(failing))
    return int(bool(failing))


def say_interrupted(run: Path) -> None:
    """Print how to go on with a sweep that was stopped from the keyboard."""
    console = Console(stderr=True)
    _say(console, f"interrupted: {len(read_rows(run))} rows are stored; go on with")
    _say(console, f"  mha-bench sweep --resume {run}")


_PASSES_TO_RELY_ON = 3


def _report(run: Path) -> Iterator[str]:
    """Write the report that this installation can, and say where it is."""
    yield ""
    try:
        (path,) = write_reports(run, ["html"])
        yield f"Report: {path}"
    except MissingExtraError as missing:
        (path,) = write_reports(run, ["md"])
        yield f"Report: {path}    ({missing})"


def _next_steps(run: Path, config: RunConfig) -> Iterator[str]:
    yield "Next:"
    yield f"  mha-bench compare {run} --against best"
    yield f"  mha-bench decide {run} --max-memory 64MiB"
    if config.measure.passes < _PASSES_TO_RELY_ON:
        yield f"  mha-bench sweep --resume {run} measure=standard    (more passes, to rely on)"
    yield "  mha-bench sweep '+implementations.mine.target=my_kernel:Mine'    (your own)"
    yield "  mha-bench list"


def _failing(rows: list[Row]) -> str:
    found = sorted({f"{row.implementation} {row.status}" for row in rows})
    return f"exit code 1: {', '.join(found)} (fail_on=[...] chooses what counts)"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
