"""`mha-bench compare --remeasure PYTHON`: a run's cells again, in two environments side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.analysis.between import BETWEEN_TYPES
from harness.analysis.cells import cells_of, is_ok
from harness.analysis.gate import breaches_between, check_fail_on
from harness.analysis.upgrade import upgrade
from harness.attention import Case
from harness.cli import hydra_app, recorded
from harness.columns import AXES
from harness.planning.config import to_run_config
from harness.remeasure import remeasure
from harness.report.content import configured_margin
from harness.report.terminal import print_comparison
from harness.settings import ImplementationSpec
from harness.store import load


def compare(
    run: Path, old_python: str, margin: float | None, fail_on: Sequence[str], passes: int
) -> list[str]:
    """Measure and print; returns what ``fail_on`` finds."""
    kinds = check_fail_on(fail_on)
    pairs = pairs_of(run)
    progress = Console(stderr=True)

    def tell(done: int, total: int) -> None:
        if done < total:
            case, spec = pairs[done]
            progress.print(f"{done + 1} of {total}: {spec.name} on {case.id}", highlight=False)

    found = remeasure(pairs, old_python, sys.executable, passes, on_pair=tell)
    comparison = upgrade(found, BETWEEN_TYPES, margin or configured_margin(run))
    print_comparison(comparison, Console())
    return breaches_between(comparison, kinds)


def pairs_of(run: Path) -> list[tuple[Case, ImplementationSpec]]:
    """Every cell of a run that is ``ok``, with its implementation as the run configured it."""
    config = to_run_config(*hydra_app.compose(recorded.recall(run)))
    specs = {spec.name: spec for spec in config.implementations}
    cells = cells_of(load(run))
    return [
        (Case.from_dict({axis: _plain(cell[axis]) for axis in AXES}), specs[cell["implementation"]])
        for cell in cells[is_ok(cells)].to_dict("records")
        if cell["implementation"] in specs
    ]


def _plain(value: object) -> object:
    return value.item() if hasattr(value, "item") else value
