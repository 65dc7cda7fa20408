"""The few distribution functions that intervals and tests need, without scipy."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()


@lru_cache(maxsize=4096)
def order_statistic_rank(n: int, alpha: float) -> int:
    """Largest k with P(Bin(n, 1/2) <= k - 1) <= alpha / 2; 0 where there is none.

    n = 20 gives 6, n = 30 gives 10, n = 6 gives 1 (at alpha = 0.05).
    """
    limit = int(Fraction(alpha) / 2 * 2**n)
    k, tail, term = 0, 0, 1
    while k <= n // 2:
        tail += term
        if tail > limit:
            break
        term = term * (n - k) // (k + 1)
        k += 1
    return k


@lru_cache(maxsize=65536)
def binomial_tail(n: int, k: int) -> float:
    """P(Bin(n, 1/2) <= k)."""
    return float(Fraction(sum(math.comb(n, i) for i in range(min(k, n) + 1)), 2**n))


def normal_two_sided(z: float) -> float:
    """P(|Z| >= z) of the standard normal; 1 for z <= 0."""
    return math.erfc(max(z, 0.0) / math.sqrt(2))


def chi_square_tail(q: float, df: int) -> float:
    """P(X >= q) of chi-square with an even number of degrees of freedom."""
    terms = [(q / 2) ** i / math.factorial(i) for i in range(df // 2)]
    return math.exp(-q / 2) * sum(terms)


def normal_quantile(probability: float) -> float:
    return _NORMAL.inv_cdf(probability)


def t_two_sided(t: float, df: int) -> float:
    """P(|T| >= t) of Student's t with whole degrees of freedom (Abramowitz & Stegun 26.7.3-4)."""
    theta = math.atan(abs(t) / math.sqrt(df))
    cosine, sine = math.cos(theta), math.sin(theta)
    term, total = (cosine, cosine) if df % 2 else (1.0, 1.0)
    for i in range(3 if df % 2 else 2, df - 1, 2):
        term *= cosine**2 * (i - 1) / i
        total += term
    if df == 1:
        return 1 - 2 * theta / math.pi
    if df % 2:
        return max(0.0, 1 - 2 / math.pi * (theta + sine * total))
    return max(0.0, 1 - sine * total)


@lru_cache(maxsize=4096)
def t_quantile(probability: float, df: int) -> float:
    """Upper quantile of Student's t, for probabilities in [0.5, 1), by bisection."""
    low, high = 0.0, 1.0
    while t_two_sided(high, df) > 2 * (1 - probability):
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if t_two_sided(middle, df) > 2 * (1 - probability):
            low = middle
        else:
            high = middle
    return (low + high) / 2
