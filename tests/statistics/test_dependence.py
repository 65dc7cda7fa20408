"""Dependence, drift and order effects are seen where they are, and seldom where they aren't."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.statistics.dependence import (
    autocorrelation,
    has_drift,
    has_order_effect,
    is_autocorrelated,
    is_dependent,
    long_run_inflation,
    order_effect,
    trend_of,
)
from tests import noise

MARGIN = 0.01


def flagged(d: noise.Array) -> bool:
    return is_autocorrelated(d) or is_dependent(d) or has_drift(d, MARGIN)


def rate_of_flags(draw: noise.Draw, n: int, repeats: int = 300) -> float:
    rng = np.random.default_rng(1)
    return float(np.mean([flagged(draw(rng, n)) for _ in range(repeats)]))


@pytest.mark.parametrize("name", noise.INDEPENDENT)
@pytest.mark.parametrize("n", [20, 45, 200])
def test_independent_rounds_are_flagged_in_at_most_5_percent(name: str, n: int) -> None:
    # 5 % and its binomial slack over 300 repeats
    assert rate_of_flags(noise.INDEPENDENT[name], n) <= 0.075


@pytest.mark.parametrize("name", noise.BROKEN)
def test_rounds_that_depend_or_move_are_flagged_in_at_least_95_percent(name: str) -> None:
    assert rate_of_flags(noise.BROKEN[name], 68) >= 0.95


def test_the_sign_autocorrelation_of_independent_rounds_is_zero_on_average() -> None:
    rng = np.random.default_rng(2)
    found = [autocorrelation(noise.normal(rng, 20)) for _ in range(2000)]
    assert abs(float(np.mean(found))) < 0.015


def test_the_sign_autocorrelation_follows_the_arcsine_law() -> None:
    rng = np.random.default_rng(3)
    draw = noise.autoregressive(0.8)
    found = float(np.mean([autocorrelation(draw(rng, 400)) for _ in range(100)]))
    assert found == pytest.approx(2 / math.pi * math.asin(0.8), abs=0.03)


def test_a_lag_of_two_looks_two_rounds_back() -> None:
    d = np.tile([1.0, -1.0], 50)
    assert autocorrelation(d, 1) == pytest.approx(-0.99 + 0.01)
    assert autocorrelation(d, 2) == pytest.approx(0.98 + 0.01)


def test_rounds_that_are_all_equal_show_no_dependence() -> None:
    d = np.zeros(30)
    assert autocorrelation(d) == 0.0
    assert long_run_inflation(d) == 1.0
    assert trend_of(d).p_value == 1.0
    assert not is_dependent(d)


def test_inflation_is_one_for_independent_rounds_and_near_the_truth_for_dependent_ones() -> None:
    rng = np.random.default_rng(4)
    independent = [long_run_inflation(noise.normal(rng, 100)) for _ in range(200)]
    assert float(np.median(independent)) == 1.0
    r = 0.5
    truth = 1 + 4 / math.pi * sum(math.asin(r**k) for k in range(1, 60))
    draw = noise.autoregressive(r)
    dependent = [long_run_inflation(draw(rng, 400)) for _ in range(100)]
    assert float(np.median(dependent)) == pytest.approx(truth, rel=0.25)


def test_only_near_perfect_dependence_is_beyond_repair() -> None:
    blocks = np.repeat([1.0, -1.0, 1.0, -1.0], 15)
    assert is_dependent(blocks)
    assert not is_dependent(np.tile([1.0, 1.0, -1.0, -1.0], 15))
    assert not is_dependent(np.array([1.0, 1.0, -1.0]))


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=25))
def test_slope_and_trend_test_are_those_of_scipy(values: list[float]) -> None:
    d = np.asarray(values)
    trend = trend_of(d)
    slope = stats.theilslopes(d, np.arange(len(d))).slope
    assert trend.change == pytest.approx(slope * (len(d) - 1), abs=1e-12)
    balance = sum(np.sign(b - a) for i, a in enumerate(d) for b in d[i + 1 :])
    assert (trend.p_value == 1.0) == (abs(balance) <= 1)


def test_the_trend_test_agrees_with_kendalls_tau() -> None:
    d = noise.drift(np.random.default_rng(5), 60)
    tau = stats.kendalltau(np.arange(60), d, method="asymptotic")
    assert math.log(trend_of(d).p_value) == pytest.approx(math.log(tau.pvalue), rel=0.02)


def test_a_sure_drift_within_the_margin_is_none() -> None:
    d = np.linspace(0, 0.005, 60)
    assert trend_of(d).p_value < 1e-6
    assert not has_drift(d, MARGIN)
    assert has_drift(d, 0.004)


def test_a_drift_that_chance_can_make_is_none() -> None:
    assert not has_drift(np.array([0.0, 0.1, -0.1, 0.2, 0.1, -0.2, 0.1]), MARGIN)
    assert not has_drift(np.array([0.0, 0.1, 0.2]), MARGIN)


def shifted_rounds(shift: float) -> tuple[noise.Array, list[str]]:
    rng = np.random.default_rng(6)
    before = [str(b) for b in rng.choice(["naive", "sdpa", "shadow"], 90)]
    return noise.normal(rng, 90) + shift * (np.array(before) == "naive"), before


def test_the_predecessor_that_slows_its_successor_is_named() -> None:
    d, before = shifted_rounds(0.05)
    effect = order_effect(d, before)
    assert effect.predecessor == "naive"
    assert effect.shift == pytest.approx(0.05, abs=0.01)
    assert has_order_effect(d, before, MARGIN)
    assert not has_order_effect(d, before, 0.10)


def test_without_an_order_effect_none_is_seen() -> None:
    rng = np.random.default_rng(7)
    seen = 0
    for _ in range(300):
        before = [str(b) for b in rng.choice(["a", "b", "c"], 45)]
        seen += has_order_effect(noise.normal(rng, 45), before, 0.0)
    assert seen / 300 <= 0.03


def test_the_order_test_is_the_rank_sum_test_times_the_number_of_groups() -> None:
    d, before = shifted_rounds(0.02)
    names = np.array(before)
    p = stats.mannwhitneyu(
        d[names == "naive"], d[names != "naive"], method="asymptotic", use_continuity=False
    ).pvalue
    assert order_effect(d, before).p_value == pytest.approx(min(1.0, 3 * p), rel=1e-6)


def test_groups_too_small_to_tell_show_no_order_effect() -> None:
    effect = order_effect(np.arange(6.0), ["a", "b", "c", "a", "b", "c"])
    assert effect.p_value == 1.0
