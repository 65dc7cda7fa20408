"""Predictions cover what they did not see, say when they reach too far, and refuse bad laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness import cost
from harness.analysis.predict import predict
from harness.attention import Case
from harness.columns import to_frame
from harness.errors import InvalidValueError
from tests.synthetic import Truth, draw_rows, make_case

GRID = [
    make_case(n, hidden_size=h, num_heads=k)
    for n in (128, 256, 512, 1024)
    for h in (256, 512)
    for k in (4, 8)
]


def seconds_of(case: Case) -> float:
    work = cost.flop_count(case) / 5e10 + cost.unmasked_pairs(case.config) / 2e9
    return 3e-5 + cost.min_bytes(case) / 1e10 + work


def run_of(cases: list[Case], seed: int = 0, miss: float = 0.03, **laws: Any) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 3])
    named = laws or {"naive": seconds_of}
    seconds = {
        name: {c.id: law(c) * float(np.exp(miss * rng.standard_normal())) for c in cases}
        for name, law in named.items()
    }
    return to_frame(draw_rows(cases, Truth(seconds, noise=0.02, passes=1, num_rounds=20), seed))


def test_a_cell_inside_the_measured_range_is_predicted_with_its_interval() -> None:
    (found,) = predict(run_of(GRID), seq_len=700, hidden_size=384, num_heads=6)
    truth = seconds_of(found.case)
    assert found.seconds == pytest.approx(truth, rel=0.1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < truth < found.high
    assert found.extrapolated == ()
    assert found.num_cells == len(GRID)
    assert 0 < (found.held_out_error or 0) < 0.1


def test_reaching_beyond_the_measured_range_is_flagged_and_widens_the_interval() -> None:
    rows = run_of(GRID)
    (inside,) = predict(rows, seq_len=1024, hidden_size=512, num_heads=8)
    (beyond,) = predict(rows, seq_len=6000, hidden_size=512, num_heads=8)
    assert beyond.extrapolated == (
        "seq_len 6000 (measured 128 to 1024)",
        "kv_seq_len 6000 (measured 128 to 1024)",
    )

    def width(p: Any) -> float:
        return float(p.high / p.low)

    assert width(beyond) > width(inside) ** 2


def test_a_law_that_does_not_hold_is_refused_with_its_error() -> None:
    rng = np.random.default_rng(5)
    (found,) = predict(
        run_of(GRID, wild=lambda c: float(np.exp(rng.uniform(-9, -3)))),
        seq_len=700, hidden_size=256, num_heads=4,
    )  # fmt: skip
    assert found.seconds is None
    assert "misses left-out cells" in found.why


def test_too_few_cells_make_no_law() -> None:
    (found,) = predict(run_of(GRID[:2]), seq_len=200, hidden_size=256, num_heads=4)
    assert found.seconds is None
    assert found.why == "2 measured cells (at least 4 needed)"


def test_other_circumstances_take_no_part_in_a_law() -> None:
    frames = [
        run_of([make_case(c.config.seq_len, mask=mask) for c in GRID[::4]])
        for mask in ("none", "causal")
    ]
    (found,) = predict(pd.concat(frames, ignore_index=True), seq_len=300, mask="causal")
    assert found.num_cells == 4


def test_what_the_run_has_several_values_of_must_be_said() -> None:
    rows = run_of(GRID)
    with pytest.raises(InvalidValueError, match=r"num_heads.*choices: 4, 8"):
        predict(rows, seq_len=300, hidden_size=256)
    with pytest.raises(InvalidValueError, match="the name of an axis"):
        predict(rows, length=300)


def coverage(runs: int) -> tuple[float, float]:
    """Share of held-out cells inside their interval, and the median error of the prediction."""
    inside, errors = [], []
    for seed in range(runs):
        rng = np.random.default_rng([seed, 9])
        left_out = set(rng.choice(len(GRID), 4, replace=False).tolist())
        rows = run_of([c for i, c in enumerate(GRID) if i not in left_out], seed, miss=0.06)
        for i in left_out:
            c = GRID[i].config
            (found,) = predict(
                rows, seq_len=c.seq_len, hidden_size=c.hidden_size, num_heads=c.num_heads
            )
            truth = seconds_of(GRID[i]) * float(np.exp(0.06 * rng.standard_normal()))
            assert found.seconds is not None
            inside.append((found.low or 0) <= truth <= (found.high or 0))
            errors.append(abs(found.seconds / truth - 1))
    return float(np.mean(inside)), float(np.median(errors))


def test_held_out_cells_are_inside_their_interval_in_at_least_90_percent() -> None:
    inside, error = coverage(runs=12)
    assert inside >= 0.9
    assert error <= 0.1


@pytest.mark.nightly
def test_held_out_cells_are_inside_their_interval_in_at_least_90_percent_of_many_runs() -> None:
    inside, error = coverage(runs=300)
    assert inside >= 0.9
    assert error <= 0.1
