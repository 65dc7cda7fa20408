"""The machine that measures; it knows no implementation by name.

A notebook needs three functions: ``load`` gives the rows of a run as a DataFrame, ``compare``
judges the implementations case by case, ``decide`` chooses under constraints and for a workload.
results/README.md shows them at work.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from harness.analysis.decide import Constraints, Decision
    from harness.analysis.workload import Demand

__all__ = ["compare", "decide", "load"]


def load(run: Path | str) -> pd.DataFrame:
    """The rows of a run as a DataFrame; results/README.md documents its columns."""
    from harness import store  # pandas only when it is asked for

    return store.load(run)


def compare(rows: pd.DataFrame, against: str = "baseline", margin: float = 0.03) -> pd.DataFrame:
    """Each implementation against a reference, with ratio of times, interval and verdict.

    Args:
        rows: One run, as ``load`` gives it.
        against: ``baseline``, ``best`` (the fastest of each case), or an implementation's name.
        margin: Smallest difference that matters, as a fraction.
    """
    from harness.analysis import compare as comparisons

    return comparisons.compare(rows, against, margin)


def decide(
    rows: pd.DataFrame,
    constraints: Constraints | None = None,
    workload: Iterable[Demand] | None = None,
    margin: float = 0.03,
) -> Decision:
    """What to use under constraints and for a workload; see ``harness.analysis.decide``."""
    from harness.analysis import decide as decisions

    return decisions.decide(rows, constraints, workload, margin)
