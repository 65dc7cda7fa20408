"""Cost laws on a real sweep: what they say of cells that they have not seen.

    pytest tests/benchmarks/test_prediction.py --nightly -s

Wants a quiet machine: a law can't predict what other processes do.
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

SWEEP = (
    "hidden_size=256,512", "num_heads=4,8", "seq_len=128,256,512,1024", "threads=1",
    "implementation=[naive,sdpa,chunked]", "measure=smoke", "budget=90s", "name=laws",
)  # fmt: skip


def left_out(rows: pd.DataFrame) -> list[tuple[bool, float]]:
    """For each case strictly inside the range, predicted from all others: inside its interval, and
    the error of the prediction.
    """
    cells = cells_of(rows)
    inner = cells[is_ok(cells) & cells["seq_len"].isin([256, 512])]
    found = []
    for key, group in inner.groupby("case_key"):
        axes = {name: int(group[name].iloc[0]) for name in ("hidden_size", "num_heads", "seq_len")}
        truth = dict(zip(group["implementation"], group["median_s"].astype(float), strict=True))
        for p in predict(rows[rows["case_key"] != key], **axes):
            if p.seconds is not None and p.implementation in truth:
                seconds = truth[p.implementation]
                is_inside = (p.low or 0.0) <= seconds <= (p.high or np.inf)
                found.append((is_inside, abs(p.seconds / seconds - 1)))
    return found


@pytest.mark.nightly
def test_cells_of_a_real_sweep_are_predicted_from_the_others(tmp_path: Path) -> None:
    done = mha_bench("sweep", *SWEEP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = left_out(load(tmp_path / "results" / "laws"))
    inside, errors = zip(*found, strict=True)
    print(f"\n{len(found)} left-out cells: {100 * np.mean(inside):.0f} % inside their interval, "
          f"median error {100 * np.median(errors):.1f} %")  # fmt: skip
    assert len(found) >= 16
    assert float(np.mean(inside)) >= 0.9
    assert float(np.median(errors)) <= 0.1
