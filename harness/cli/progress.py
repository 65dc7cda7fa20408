"""What is seen while a sweep runs: a bar with the time left on a terminal, plain lines elsewhere.

Both write to standard error, so that the table at the end can be piped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.attention import Case
from harness.cli.plan_text import duration
from harness.planning.plan import Plan
from harness.rows import Row, Status
from harness.sweep import Observer

_EXPECTED = (Status.OK, Status.UNSUPPORTED)


@contextmanager
def watching(plan: Plan, console: Console) -> Iterator[Observer]:
    """An observer that fits the console, for the length of one sweep."""
    if not console.is_terminal:
        yield _Lines(plan, console)
        return
    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("[dim]{task.description}[/]"),
    )
    # Once a second: a livelier bar would take time from what is being measured.
    with Progress(*columns, console=console, transient=True, refresh_per_second=1) as progress:
        yield _Bar(plan, progress)


class _Watcher:
    """What both kinds of observer share: the time left, and each problem told once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._told: set[tuple[str, str]] = set()

    def _left_s(self, done: int, total: int, eta_s: float | None) -> float:
        return self._plan.eta_s * (total - done) / total if eta_s is None else eta_s

    def _problem(self, row: Row) -> str | None:
        """A line about a row that should not be, once per implementation and case."""
        pair = (row.implementation, row.case.key)
        if row.status in _EXPECTED or pair in self._told:
            return None
        self._told.add(pair)
        return f"{row.status}: {row.implementation} on {row.case.id}: {'; '.join(row.reasons)}"


class _Bar(_Watcher):
    def __init__(self, plan: Plan, progress: Progress) -> None:
        super().__init__(plan)
        self._progress = progress
        total = len(plan.cases) * plan.passes
        self._task = progress.add_task("", total=total, left="")

    def on_case_start(
        self, case: Case, pass_index: int, done: int, total: int, eta_s: float | None
    ) -> None:
        self._progress.update(
            self._task,
            description=escape(case.id),
            completed=done,
            total=total,
            left=f"{duration(self._left_s(done, total, eta_s))} left",
        )

    def on_row(self, row: Row) -> None:
        problem = self._problem(row)
        if problem is not None:
            text = f"[yellow]{escape(problem)}[/]"
            self._progress.console.print(text, highlight=False, soft_wrap=True)

    def on_message(self, text: str) -> None:
        self._progress.update(self._task, description=escape(text))


class _Lines(_Watcher):
    _LEAST_GAP_S = 1.0

    def __init__(self, plan: Plan, console: Console) -> None:
        super().__init__(plan)
        self._console = console
        self._last_s = float("-inf")

    def on_case_start(
        self, case: Case, pass_index: int, done: int, total: int, eta_s: float | None
    ) -> None:
        # Quick cases would flood a log; the first line and every slow case are shown.
        now = time.monotonic()
        if now - self._last_s >= self._LEAST_GAP_S:
            self._last_s = now
            left = duration(self._left_s(done, total, eta_s))
            self._print(f"[{done + 1}/{total}] {case.id}, {left} left")

    def on_row(self, row: Row) -> None:
        problem = self._problem(row)
        if problem is not None:
            self._print(problem)

    def on_message(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
