"""What checking against float64 cost, as a share of the time that measuring took."""

from __future__ import annotations

import pandas as pd


def judging_share(rows: pd.DataFrame) -> float | None:
    """Exact results and judging over the wall time of the processes that timed; None: not recorded.

    Memory is measured in other processes, whose time is not counted.
    """
    timed = rows[rows["reference_s"].notna()]
    by_process = timed.groupby("process").agg(
        reference_s=("reference_s", "max"), judging_s=("judging_s", "sum"), wall_s=("wall_s", "max")
    )
    by_process = by_process[by_process["wall_s"].notna()]
    if by_process.empty:
        return None
    spent = by_process["reference_s"].sum() + by_process["judging_s"].sum()
    return float(spent / by_process["wall_s"].sum())
