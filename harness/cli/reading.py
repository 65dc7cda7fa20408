"""`mha-bench compare` and `mha-bench report`: stored runs only, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.errors import InvalidValueError, StoreError
from harness.report import (
    render_compare,
    render_terminal,
    render_trend,
    write_reports,
    write_trend,
)
from harness.store import CONFIG_FILE

_RESULTS = Path("results")


def compare(
    run: Path | None,
    other: Path | None,
    against: str,
    margin: float | None,
    fail_on: Sequence[str],
) -> list[str]:
    """Print a comparison; returns what ``fail_on`` finds in it."""
    if margin is not None and not 0 < margin < 1:
        raise InvalidValueError("margin", "a share between 0 and 1, e.g. 0.03", margin)
    breaches = render_compare(
        run or newest_run(_RESULTS),
        other,
        Console(),
        against=against,
        margin=margin,
        fail_on=fail_on,
    )
    stderr = Console(stderr=True)
    for breach in breaches:
        stderr.print(breach, markup=False, highlight=False, soft_wrap=True)
    return breaches


def report(runs: Sequence[Path], formats: Sequence[str], out: Path | None) -> None:
    """Print each run, and write its files."""
    if out is not None and len(runs) > 1:
        raise InvalidValueError("--out", "one run at a time", f"{len(runs)} runs")
    console = Console()
    for run in runs or [newest_run(_RESULTS)]:
        written = write_reports(run, formats, out)
        render_terminal(run, console)
        for path in written:
            console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def trend(runs: Sequence[Path], formats: Sequence[str], out: Path | None) -> None:
    """Print what changed over several runs, and write it: beside the newest one by default."""
    chosen = list(runs) or _runs_in(_RESULTS)
    if len(chosen) < 2:
        raise InvalidValueError("--trend", "at least two runs", len(chosen))
    console = Console()
    written = write_trend(chosen, formats, out or Path(chosen[-1]).parent)
    render_trend(chosen, console)
    for path in written:
        console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def _runs_in(results_dir: Path) -> list[Path]:
    return sorted(path.parent for path in results_dir.glob(f"*/{CONFIG_FILE}"))


def newest_run(results_dir: Path) -> Path:
    """The run that was started last.

    Raises:
        StoreError: there is none.
    """
    runs = _runs_in(results_dir)
    if not runs:
        raise StoreError(f"no run in {results_dir}/ (name one, or make one: mha-bench sweep)")
    return max(runs, key=lambda run: (run / CONFIG_FILE).stat().st_mtime)
