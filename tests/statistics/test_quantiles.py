"""The distribution functions, against scipy's."""

from __future__ import annotations

import pytest
from scipy import stats

from harness.statistics.quantiles import (
    binomial_tail,
    chi_square_tail,
    normal_quantile,
    normal_two_sided,
    order_statistic_rank,
    t_quantile,
    t_two_sided,
)


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.001])
def test_the_rank_is_the_largest_whose_tail_fits_half_of_alpha(alpha: float) -> None:
    for n in range(1, 260):
        fitting = [k for k in range(1, n // 2 + 2) if stats.binom.cdf(k - 1, n, 0.5) <= alpha / 2]
        assert order_statistic_rank(n, alpha) == max(fitting, default=0), n


def test_the_ranks_are_those_of_the_protocol() -> None:
    assert [order_statistic_rank(n, 0.05) for n in (5, 6, 20, 30)] == [0, 1, 6, 10]


def test_the_rank_of_thousands_of_rounds_is_found_at_once() -> None:
    assert order_statistic_rank(5000, 0.05) == int(stats.binom.ppf(0.025, 5000, 0.5))


def test_the_binomial_tail_is_that_of_scipy() -> None:
    for n in (1, 7, 40, 200):
        for k in range(n + 2):
            assert binomial_tail(n, k) == pytest.approx(stats.binom.cdf(k, n, 0.5), rel=1e-10)


@pytest.mark.parametrize("df", range(1, 31))
def test_the_tail_and_the_quantile_of_t_are_those_of_scipy(df: int) -> None:
    for t in (-3.0, 0.0, 0.1, 1.0, 2.5, 8.0):
        assert t_two_sided(t, df) == pytest.approx(2 * stats.t.sf(abs(t), df), abs=1e-13)
    for p in (0.6, 0.9, 0.975, 0.995, 0.9995):
        assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8)


def test_the_normal_and_chi_square_functions_are_those_of_scipy() -> None:
    for z in (0.0, 0.5, 1.96, 6.0):
        assert normal_two_sided(z) == pytest.approx(2 * stats.norm.sf(z), rel=1e-12)
    assert normal_two_sided(-1.0) == 1.0
    for p in (1e-9, 0.3, 0.975):
        assert normal_quantile(p) == pytest.approx(stats.norm.ppf(p), rel=1e-9)
    for df in (2, 4, 8):
        for q in (0.0, 1.0, 9.5, 30.0):
            assert chi_square_tail(q, df) == pytest.approx(stats.chi2.sf(q, df), rel=1e-12)
