"""`mha-bench selfcheck`: the harness's own accuracy, line by line as each is known."""

from __future__ import annotations

from rich.console import Console

from harness.selfcheck import FULL, QUICK, run_selfcheck
from harness.selfcheck.outcome import Outcome


def selfcheck(*, full: bool) -> bool:
    """Run every check; returns whether all have passed."""
    console = Console()
    length = "a night" if full else "about two minutes"
    console.print(f"[dim]checking the harness itself: {length}, best on an idle machine[/]")
    failed = 0
    for outcome in run_selfcheck(FULL if full else QUICK):
        failed += not outcome.passed
        _print(outcome, console)
    summary = f"[red]{failed} failed[/]" if failed else "[green]all passed[/]"
    console.print(summary)
    return not failed


def _print(outcome: Outcome, console: Console) -> None:
    mark, style = ("ok  ", "green") if outcome.passed else ("FAIL", "bold red")
    console.print(f"{mark} {outcome.name}: ", style=style, end="", markup=False, highlight=False)
    text = f"{outcome.figure} (accepted: {outcome.accepted})"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
