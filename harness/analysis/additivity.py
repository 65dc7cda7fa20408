"""Whether forward_train and backward add up to forward_backward, where all three were measured.

They time the same work cut differently. A gap says that one of them measures something else: a
graph kept too long, a cache that only one of them warms, or a machine that changed in between.
"""

from __future__ import annotations

import pandas as pd

from harness.attention import Mode
from harness.columns import AXES
from harness.rows import Status

TOLERANCE = 0.05
_PARTS = [Mode.FORWARD_TRAIN.value, Mode.BACKWARD.value, Mode.FORWARD_BACKWARD.value]


def additivity(cells: pd.DataFrame) -> pd.DataFrame:
    """One line for each case and implementation that has all three modes.

    Args:
        cells: From ``harness.analysis.cells.cells_of``.

    Returns:
        The axes but ``mode``, ``implementation``, ``parts_s`` (forward_train + backward),
        ``whole_s`` (forward_backward), ``gap`` (parts / whole - 1) and ``adds_up`` (|gap| <= 5 %).
    """
    axes = [axis for axis in AXES if axis != "mode"]
    ok = cells[(cells["status"] == Status.OK) & cells["mode"].isin(_PARTS)]
    times = ok.pivot_table(
        index=[*axes, "implementation"], columns="mode", values="median_s", aggfunc="median"
    ).reindex(columns=_PARTS)
    complete = times.dropna()
    parts = complete[_PARTS[0]] + complete[_PARTS[1]]
    gap = parts / complete[_PARTS[2]] - 1
    found = pd.DataFrame(
        {
            "parts_s": parts,
            "whole_s": complete[_PARTS[2]],
            "gap": gap,
            "adds_up": gap.abs() <= TOLERANCE,
        }
    )
    return found.reset_index()
