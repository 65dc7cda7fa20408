"""Crossovers lie where the laws cross, and their intervals say how sure that is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.analysis.crossover import Crossover, crossovers
from tests.analysis.laws import Law, run_with_laws

QUADRATIC: Law = (1e-5, 0.0, 1e-9)


def crossing_at(length: float, steepness: float = 0.7) -> dict[str, Law]:
    """Two laws that are equal at ``length`` only: one quadratic, one linear with more fixed cost.

    The linear one grows with ``steepness`` times the quadratic term at the crossing.
    """
    slope = steepness * QUADRATIC[2] * length
    fixed = QUADRATIC[0] + QUADRATIC[2] * length**2 - slope * length
    return {"quadratic": QUADRATIC, "linear": (fixed, slope, 0.0)}


def the_crossover(laws: dict[str, Law], **options: float) -> Crossover:
    (found,) = crossovers(run_with_laws(laws, **options))  # type: ignore[arg-type]
    return found


def test_a_crossover_is_found_where_the_laws_cross() -> None:
    found = the_crossover(crossing_at(700))
    assert (found.below, found.above) == ("quadratic", "linear")
    assert found.estimate == pytest.approx(700, rel=0.12)
    assert found.low is not None
    assert found.high is not None
    assert 512 <= found.low < 700 < found.high <= 1024
    assert found.axis == "seq_len"


def test_implementations_that_keep_their_order_never_cross() -> None:
    assert crossovers(run_with_laws({"a": QUADRATIC, "b": (2e-5, 0.0, 2e-9)})) == []


def test_a_loser_everywhere_has_no_crossover_worth_naming() -> None:
    laws = {**crossing_at(700), "fast": (1e-6, 0.0, 1e-10)}
    assert crossovers(run_with_laws(laws)) == []


def test_where_the_order_is_never_sure_the_interval_is_open() -> None:
    laws = {"a": (1e-4, 0.0, 1.00e-9), "b": (1.0005e-4, 0.0, 0.9995e-9)}
    found = crossovers(run_with_laws(laws, noise=0.1))
    assert all(c.is_open for c in found)


def test_each_line_has_a_crossover_of_its_own() -> None:
    import pandas as pd

    frames = [
        run_with_laws(crossing_at(length), hidden_size=hidden)
        for length, hidden in ((300, 64), (1500, 128))
    ]
    found = crossovers(pd.concat(frames, ignore_index=True))
    assert [dict(c.fixed) for c in found] == [{"hidden_size": 64}, {"hidden_size": 128}]
    assert [c.estimate for c in found] == [
        pytest.approx(300, rel=0.2),
        pytest.approx(1500, rel=0.2),
    ]


def test_differences_within_the_margin_everywhere_are_no_crossover() -> None:
    laws: dict[str, Law] = {"a": (1e-4, 0.0, 1e-9), "b": (1.01e-4, 0.0, 0.99e-9)}
    rows = run_with_laws(laws, noise=0.001)
    assert crossovers(rows, margin=0.03) == []


def coverage(runs: int) -> tuple[float, float]:
    """Share of intervals that hold the true crossing, and their median width as a ratio."""
    held, widths = [], []
    for seed in range(runs):
        rng = np.random.default_rng([seed, 1])
        truth = float(np.exp(rng.uniform(math.log(200), math.log(1600))))
        steepness = float(rng.uniform(0.2, 0.95))
        noise = float(rng.choice([0.01, 0.03, 0.06]))
        for found in crossovers(run_with_laws(crossing_at(truth, steepness), seed, noise=noise)):
            low, high = found.low or 0.0, found.high or math.inf
            held.append(low <= truth <= high)
            widths.append(high / low if low else math.inf)
    return float(np.mean(held)), float(np.median(widths))


def test_the_interval_holds_the_true_crossing_in_at_least_90_percent() -> None:
    held, width = coverage(runs=60)
    assert held >= 0.9
    assert width <= 2.0


@pytest.mark.nightly
def test_the_interval_holds_the_true_crossing_in_at_least_90_percent_of_many_runs() -> None:
    held, _ = coverage(runs=1000)
    assert held >= 0.9
