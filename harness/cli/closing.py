"""What is said at the end of a sweep: what became of the rows, where they are, what to try next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from harness.config import RunConfig
from harness.rows import Row, Status
from harness.store import read_rows


def close(run: Path, config: RunConfig) -> int:
    """Print the run's table and what follows; 1 where a row's status is among ``fail_on``."""
    rows = read_rows(run)
    console = Console()
    for line in (*_outcome(rows), *_next_steps(run)):
        console.print(line, highlight=False, soft_wrap=True)
    return int(any(row.status in config.fail_on for row in rows))


def say_interrupted(run: Path) -> None:
    """Print how to go on with a sweep that was stopped from the keyboard."""
    console = Console(stderr=True)
    console.print(
        f"interrupted: {len(read_rows(run))} rows are stored; go on with\n"
        f"  mha-bench sweep --resume {run}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _outcome(rows: list[Row]) -> Iterator[str]:
    """Counts by status, then every reason once with the implementations that gave it."""
    counts = Counter(row.status for row in rows)
    said = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    yield ""
    yield f"[bold]{len(rows)} rows:[/] {said}"
    for reason, names in _reasons(rows).items():
        yield escape(f"  {', '.join(names)}: {reason}")


def _reasons(rows: Iterable[Row]) -> dict[str, dict[str, None]]:
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.status is not Status.OK:
            reason = f"{row.status}: {'; '.join(row.reasons)}"
            found.setdefault(reason, {})[row.implementation] = None
    return found


def _next_steps(run: Path) -> Iterator[str]:
    yield ""
    yield "Next:"
    yield escape(f"  mha-bench compare {run}")
    yield escape(f"  mha-bench report {run}")
