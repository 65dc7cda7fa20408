"""Cost laws on a real sweep: what they say of cells that they have not seen.

    pytest tests/benchmarks/test_prediction.py --nightly -s

Wants a quiet machine: a law can't predict what other processes do. Ends in about 80 seconds. The
cells that are held out follow from the grid: every one that is strictly inside its lengths.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.analysis.cells import cells_of, is_ok
from harness.analysis.predict import predict
from harness.store import load
from tests.command import mha_bench

LENGTHS = (128, 256, 384, 512, 768, 1024)
SWEEP = (
    "hidden_size=256,512", "num_heads=4,8", f"seq_len={','.join(map(str, LENGTHS))}", "threads=1",
    "implementation=[naive,sdpa,fused]", "measure=smoke", "budget=72s", "name=laws",
)  # fmt: skip


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per cell strictly inside the lengths, predicted from all other cases: the error of
    the prediction, and whether the cell is inside its interval.
    """
    cells = cells_of(rows)
    inner = cells[is_ok(cells) & cells["seq_len"].isin(LENGTHS[1:-1])]
    found = []
    for key, group in inner.groupby("case_key"):
        axes = {name: int(group[name].iloc[0]) for name in ("hidden_size", "num_heads", "seq_len")}
        truth = dict(zip(group["implementation"], group["median_s"].astype(float), strict=True))
        for p in predict(rows[rows["case_key"] != key], **axes):
            if p.seconds is not None and p.implementation in truth:
                seconds = truth[p.implementation]
                is_inside = (p.low or 0.0) <= seconds <= (p.high or np.inf)
                found.append((p.implementation, abs(p.seconds / seconds - 1), is_inside))
    return pd.DataFrame(found, columns=["implementation", "error", "is_inside"])


def described(name: str, found: pd.DataFrame) -> str:
    return (
        f"{name}: {len(found)} left-out cells, median error {100 * found['error'].median():.1f} %, "
        f"{100 * found['is_inside'].mean():.0f} % inside their 95 % interval"
    )


@pytest.mark.nightly
def test_cells_of_a_real_sweep_are_predicted_from_the_others(tmp_path: Path) -> None:
    done = mha_bench("sweep", *SWEEP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = left_out(load(tmp_path / "results" / "laws"))
    for name, of_one in found.groupby("implementation"):
        print(f"\n{described(str(name), of_one)}", end="")
    print(f"\n{described('all', found)}")
    assert len(found) >= 16
    assert found["is_inside"].mean() >= 0.9
    assert found["error"].median() <= 0.1
