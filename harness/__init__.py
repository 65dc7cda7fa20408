"""The machine that measures; it knows no implementation by name.

A notebook needs nothing else: ``harness.load(run)`` gives the rows of a run as a DataFrame.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load"]


def load(run: Path | str) -> pd.DataFrame:
    """The rows of a run as a DataFrame; see ``harness.store.load``."""
    from harness import store  # pandas only when it is asked for

    return store.load(run)
