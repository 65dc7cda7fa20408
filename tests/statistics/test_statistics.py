"""Intervals cover what they promise, and p-values are their exact inverse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.statistics.intervals import (
    Effect,
    Interval,
    effect_of,
    interval,
    order_statistic_interval,
    p_value,
    paired_differences,
    sign_test,
)
from tests import noise

REPEATS = 600


def test_the_interval_is_bounded_by_the_order_statistics() -> None:
    d = np.random.default_rng(0).permutation(np.arange(1.0, 21.0))
    assert order_statistic_interval(d) == Interval(6.0, 15.0)
    assert order_statistic_interval(np.arange(1.0, 31.0)) == Interval(10.0, 21.0)
    assert order_statistic_interval(np.array([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])) == Interval(1.0, 6.0)


def test_too_few_rounds_leave_everything_possible() -> None:
    nothing = order_statistic_interval(np.arange(5.0))
    assert (nothing.low, nothing.high) == (-math.inf, math.inf)
    assert nothing.half_width == math.inf
    assert nothing.contains(1e9)
    assert order_statistic_interval(np.zeros(0)) == nothing


@given(st.integers(6, 80), st.sampled_from([0.05, 0.01]))
def test_the_interval_is_that_of_scipy_s_quantile_test(n: int, alpha: float) -> None:
    d = np.random.default_rng(n).standard_normal(n)
    ours = order_statistic_interval(d, alpha)
    theirs = stats.quantile_test(d, q=0, p=0.5).confidence_interval(1 - alpha)
    if math.isfinite(ours.low):
        assert (ours.low, ours.high) == (theirs.low, theirs.high)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=40), st.integers(-5, 5))
def test_the_interval_excludes_exactly_what_the_sign_test_rejects(
    values: list[int], null: int
) -> None:
    d = np.asarray(values, float)
    rejected = sign_test(d, null) <= 0.05
    assert order_statistic_interval(d).contains(null) == (not rejected)


def test_the_sign_test_without_ties_is_scipy_s_binomial_test() -> None:
    d = np.random.default_rng(1).standard_normal(33) + 0.3
    below = int(np.sum(d < 0))
    assert sign_test(d) == pytest.approx(stats.binomtest(below, 33).pvalue, rel=1e-12)


def test_a_difference_is_positive_where_the_first_is_slower() -> None:
    d = paired_differences([(2.0, 3.0), (4.0, 5.0)], [(1.0, 9.0), (1.0, 2.0)])
    assert d == pytest.approx([math.log(2), math.log(4)])


def test_bursts_of_unequal_length_are_compared_over_the_calls_that_both_have() -> None:
    d = paired_differences([(2.0, 2.0, 1.0)], [(2.0, 2.0)])
    assert d == pytest.approx([0.0])


def test_only_rounds_that_both_have_are_paired() -> None:
    assert len(paired_differences([(1.0,), (1.0,), (1.0,)], [(1.0,), ()])) == 1
    assert len(paired_differences([], [(1.0,)])) == 0


def miss_rate(draw: noise.Draw, n: int) -> float:
    rng = np.random.default_rng(8)
    effects = [effect_of([draw(rng, n)]) for _ in range(REPEATS)]
    return float(np.mean([not interval(e).contains(0.0) for e in effects]))


@pytest.mark.parametrize("n", [6, 8, 13, 20, 45, 150])
@pytest.mark.parametrize("name", noise.INDEPENDENT)
def test_the_interval_misses_the_median_of_independent_rounds_in_at_most_7_percent(
    name: str, n: int
) -> None:
    assert miss_rate(noise.INDEPENDENT[name], n) <= 0.07


@pytest.mark.parametrize("n", [8, 13, 30, 68, 150])
@pytest.mark.parametrize("name", noise.MILDLY_DEPENDENT)
def test_the_interval_misses_the_median_of_mildly_dependent_rounds_in_at_most_10_percent(
    name: str, n: int
) -> None:
    assert miss_rate(noise.MILDLY_DEPENDENT[name], n) <= 0.10


def test_the_interval_is_no_wider_than_it_must_be() -> None:
    """Guards against a level of alpha where alpha / 2 belongs, and the reverse."""
    assert 0.02 <= miss_rate(noise.normal, 45) <= 0.06


def several(processes: int, spread: float, seed: int = 0) -> list[noise.Array]:
    rng = np.random.default_rng(seed)
    return [noise.normal(rng, 30) + spread * rng.standard_normal() for _ in range(processes)]


def effects_of(processes: int, spread: float) -> list[Effect]:
    return [effect_of(several(processes, spread, seed)) for seed in range(REPEATS)]


@pytest.mark.parametrize("processes", [2, 3, 6, 11])
@pytest.mark.parametrize("spread", [0.0, 0.005, 0.05])
def test_the_interval_over_processes_covers_the_truth(processes: int, spread: float) -> None:
    missed = [not interval(e).contains(0.0) for e in effects_of(processes, spread)]
    assert float(np.mean(missed)) <= 0.07


def test_the_interval_over_processes_is_student_s_on_their_medians() -> None:
    processes = [np.full(30, value) for value in (0.01, 0.03, 0.08, 0.02)]
    effect = effect_of(processes)
    medians = [0.01, 0.03, 0.08, 0.02]
    half = stats.t.ppf(0.975, 3) * np.std(medians, ddof=1) / math.sqrt(4)
    half *= math.sqrt(math.pi / 2)  # what a median spreads more than a mean
    assert effect.centre == pytest.approx(0.025)
    assert interval(effect).low == pytest.approx(0.025 - half)
    assert interval(effect).high == pytest.approx(0.025 + half)


def test_processes_that_agree_by_chance_still_carry_the_noise_of_their_rounds() -> None:
    d = noise.normal(np.random.default_rng(3), 30)
    effect = effect_of([d, d, d])
    assert effect.between_sd == 0.0
    inner = order_statistic_interval(d).half_width
    expected = inner * math.sqrt(math.pi / 2) / math.sqrt(3)
    assert interval(effect).half_width == pytest.approx(expected)


def test_more_rounds_and_more_processes_narrow_the_interval() -> None:
    rng = np.random.default_rng(5)
    widths = [
        interval(effect_of([noise.normal(rng, n) for _ in range(p)])).half_width
        for n, p in ((20, 6), (200, 6), (200, 24))
    ]
    assert widths == sorted(widths, reverse=True)


def test_a_hidden_mode_of_some_processes_is_called_multimodal() -> None:
    rng = np.random.default_rng(9)

    def planted(processes: int) -> float:
        found = [
            effect_of(
                [noise.normal(rng, 30) + math.log(1.8) * (rng.random() < 0.25)
                 for _ in range(processes)]
            ).multimodal
            for _ in range(400)
        ]  # fmt: skip
        return float(np.mean(found))

    assert planted(6) >= 0.78  # in 18 % of six draws none or all are slow
    assert planted(11) >= 0.93
    assert float(np.mean([e.multimodal for e in effects_of(6, 0.0)])) <= 0.01


def test_a_spread_without_meaning_is_in_the_interval_and_not_a_mode() -> None:
    processes = [np.full(30, value) for value in (0.001, 0.002, 0.003)]
    assert effect_of(processes).multimodal
    assert not effect_of(processes, mode_floor=0.01).multimodal


@given(
    st.integers(1, 5),
    st.sampled_from([0.0, 0.01]),
    st.floats(-0.03, 0.03),
    st.sampled_from([0.05, 0.01, 0.001]),
    st.sampled_from([0.0, 0.6]),
)
def test_p_values_are_the_inverse_of_intervals(
    processes: int, spread: float, null: float, alpha: float, r: float
) -> None:
    rng = np.random.default_rng(processes)
    draw = noise.autoregressive(r)
    effect = effect_of([draw(rng, 40) + spread * rng.standard_normal() for _ in range(processes)])
    p = p_value(effect, null)
    if abs(p - alpha) > 1e-9:
        assert interval(effect, alpha).contains(null) == (p > alpha)


@pytest.mark.parametrize("n", [6, 7, 9, 11])
@pytest.mark.parametrize("name", ["normal", "lognormal"])
def test_few_rounds_that_agree_are_called_at_the_promised_rate(name: str, n: int) -> None:
    rng = np.random.default_rng(19)
    draw = noise.INDEPENDENT[name]
    p_values = [p_value(effect_of([draw(rng, n)])) for _ in range(4000)]
    for alpha in (0.05, 0.0125):
        assert float(np.mean(np.asarray(p_values) <= alpha)) <= 1.4 * alpha


def test_six_rounds_that_agree_by_far_survive_a_correction_for_five_comparisons() -> None:
    far = effect_of([np.log(2) + noise.normal(np.random.default_rng(20), 6)])
    near = effect_of([np.array([0.001, 0.03, 0.02, 0.09, 0.002, 0.05])])
    assert 5 * p_value(far) <= 0.05
    assert p_value(far) == pytest.approx(2 / 2**6 / 8)
    assert 5 * p_value(near) > 0.05


def test_dependent_rounds_get_a_wider_interval_and_a_larger_p_value() -> None:
    rng = np.random.default_rng(11)
    d = noise.autoregressive(0.7)(rng, 100) + 0.006
    dependent, shuffled = effect_of([d]), effect_of([rng.permutation(d)])
    assert dependent.inflation > 1.5
    assert interval(dependent).half_width > interval(shuffled).half_width
    assert p_value(dependent) > p_value(shuffled)


@pytest.mark.parametrize("n", [6, 8, 12])
def test_a_few_rounds_whose_signs_come_in_a_row_keep_a_bound(n: int) -> None:
    """Chance orders six of them so in every third case: a 2x lead must survive that."""
    d = np.sort(np.log(2) + noise.normal(np.random.default_rng(21), n))
    effect = effect_of([d])
    shown = interval(effect)
    assert effect.inflation > 1.5
    assert shown.low < d[0]
    assert shown.high > d[-1]
    assert 0.6 < shown.low < shown.high < 0.8
    assert p_value(effect) <= 0.05 < p_value(effect, d[-1])


def test_intervals_of_a_few_rounds_in_a_row_are_nested() -> None:
    effect = effect_of([np.sort(noise.normal(np.random.default_rng(22), 12))])
    found = [interval(effect, alpha) for alpha in (0.3, 0.1, 0.05, 0.02, 0.01)]
    assert [i.low for i in found] == sorted((i.low for i in found), reverse=True)
    assert [i.high for i in found] == sorted(i.high for i in found)


def test_an_effect_needs_at_least_one_round() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        effect_of([np.zeros(0)])
    assert effect_of([np.zeros(0), np.ones(8)]).medians == (1.0,)


def test_processes_of_too_few_rounds_prove_nothing() -> None:
    effect = effect_of([np.full(4, 0.5), np.full(4, 0.5)])
    assert p_value(effect) == 1.0
    assert interval(effect).half_width == math.inf
