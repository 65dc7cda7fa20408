"""Estimates and intervals for paired ratios of times: pure functions on arrays, numpy only.

A *difference* is ``log(time of B) - log(time of the baseline)`` of one round; all effects are logs
of ratios of times, so negative is faster. Within a process the interval of the median is that of
the order statistics: no assumption on the shape of the noise. Between processes it is Student's t
on the processes' medians, never narrower than the rounds themselves allow. Rounds that depend on
each other widen it (Bartlett's long-run variance of the differences' signs).

``interval`` and ``p_value`` are each other's inverse: a value is outside the interval at ``alpha``
exactly where its p-value is at most ``alpha`` (under 12 rounds in one process the p-value may be
smaller, see ``_rounds_p_value``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.statistics.dependence import MIN_ROUNDS, Array, long_run_inflation
from harness.statistics.quantiles import (
    binomial_tail,
    normal_quantile,
    normal_two_sided,
    order_statistic_rank,
    t_quantile,
    t_two_sided,
)

ALPHA = 0.05
MULTIMODAL_STANDARD_ERRORS = 3.0
_MANY_ROUNDS = 12
_SHARPENED = 8.0


@dataclass(frozen=True)
class Interval:
    """A closed interval, in logs of ratios unless said; infinite where nothing is known."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2 if math.isfinite(self.low + self.high) else math.inf

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


NOTHING_KNOWN = Interval(-math.inf, math.inf)


def order_statistic_interval(d: Array, alpha: float = ALPHA) -> Interval:
    """Interval of the median of ``d`` at confidence ``1 - alpha``: its k-th and (n-k+1)-th value.

    Everything is possible (an infinite interval) with too few values: under 6 at alpha = 0.05.
    """
    k = order_statistic_rank(len(d), alpha)
    if k == 0:
        return NOTHING_KNOWN
    ordered = np.sort(d)
    return Interval(float(ordered[k - 1]), float(ordered[len(d) - k]))


def sign_test(d: Array, null: float = 0.0) -> float:
    """Two-sided p-value of the median being ``null``; ties count for both sides."""
    fewer = min(int(np.sum(d <= null)), int(np.sum(d >= null)))
    return min(1.0, 2 * binomial_tail(len(d), fewer))


def paired_differences(
    times_s: Sequence[Sequence[float]], baseline_s: Sequence[Sequence[float]]
) -> Array:
    """Differences ``[round]`` of bursts' minima; both arguments are ``[round][call]`` seconds.

    Only rounds that both have count, and of each only as many calls as both have: a minimum over
    more calls is lower.
    """
    logs = []
    for calls, baseline_calls in zip(times_s, baseline_s, strict=False):
        n = min(len(calls), len(baseline_calls))
        if n:
            logs.append(math.log(min(calls[:n])) - math.log(min(baseline_calls[:n])))
    return np.asarray(logs, float)


@dataclass(frozen=True)
class Effect:
    """One implementation against another over all processes that measured both.

    Args:
        centre: Median of the processes' medians.
        medians: Median of each process.
        inner_se: Standard error of ``centre`` by the rounds alone.
        between_sd: Standard deviation of the processes' medians; 0 with one process.
        differences: The rounds of the only process, sorted; empty with several.
        inflation: Variance inflation of the only process by dependence.
        num_rounds: Rounds in all processes.
        multimodal: The processes disagree by more than their rounds can explain.
    """

    centre: float
    medians: tuple[float, ...]
    inner_se: float
    between_sd: float
    differences: Array
    inflation: float
    num_rounds: int
    multimodal: bool


def effect_of(processes: Sequence[Array], mode_floor: float = 0.0) -> Effect:
    """The effect that the differences of one or more processes show.

    Args:
        processes: Differences ``[round]`` of each process.
        mode_floor: Processes whose medians spread less than this are never called multimodal: a
            spread without practical meaning belongs in the interval, not in a flag.
    """
    measured = [np.asarray(d, float) for d in processes if len(d)]
    if not measured:
        raise ValueError("processes: at least one round is needed")
    medians = tuple(float(np.median(d)) for d in measured)
    inner = [_inner_standard_error(d) for d in measured]
    typical = math.sqrt(sum(se**2 for se in inner) / len(inner))
    spread = float(np.std(medians, ddof=1)) if len(medians) > 1 else 0.0
    only = np.sort(measured[0]) if len(measured) == 1 else np.zeros(0)
    return Effect(
        centre=float(np.median(medians)),
        medians=medians,
        inner_se=_se_of_median(typical, len(inner)),
        between_sd=spread,
        differences=only,
        inflation=long_run_inflation(measured[0]) if len(measured) == 1 else 1.0,
        num_rounds=sum(len(d) for d in measured),
        multimodal=spread > max(MULTIMODAL_STANDARD_ERRORS * typical, mode_floor),
    )


def _inner_standard_error(d: Array) -> float:
    """Standard error of one process's median, read off its 95 % order-statistic interval."""
    half_width = order_statistic_interval(d, ALPHA).half_width
    return half_width / normal_quantile(1 - ALPHA / 2) * math.sqrt(long_run_inflation(d))


def _se_of_median(sd: float, num_processes: int) -> float:
    """Standard error of the median of P values; up to sqrt(pi/2) that of their mean."""
    loss = 1.0 if num_processes <= 2 else math.sqrt(math.pi / 2)
    return sd * loss / math.sqrt(num_processes)


def interval(effect: Effect, alpha: float = ALPHA) -> Interval:
    """Interval of an effect at confidence ``1 - alpha``."""
    if len(effect.medians) == 1:
        return _rounds_interval(effect.differences, effect.inflation, alpha)
    inner = normal_quantile(1 - alpha / 2) * effect.inner_se
    between = t_quantile(1 - alpha / 2, len(effect.medians) - 1) * _between_se(effect)
    half_width = max(inner, between)
    return Interval(effect.centre - half_width, effect.centre + half_width)


def p_value(effect: Effect, null: float = 0.0) -> float:
    """Two-sided p-value of the effect being ``null``."""
    if len(effect.medians) == 1:
        return _widened_p_value(effect.differences, effect.inflation, null)
    distance = abs(effect.centre - null)
    if distance == 0 or math.isinf(effect.inner_se):
        return 1.0
    inner = normal_two_sided(distance / effect.inner_se) if effect.inner_se else 0.0
    spread = _between_se(effect)
    between = t_two_sided(distance / spread, len(effect.medians) - 1) if spread else 0.0
    return max(inner, between)


def standard_error(effect: Effect) -> float:
    """Standard error of the centre, for sums over many effects; single ones have ``interval``.

    Without the allowance for few processes that Student's t makes: a sum of many has enough.
    """
    if len(effect.medians) == 1:
        return interval(effect, ALPHA).half_width / normal_quantile(1 - ALPHA / 2)
    return max(effect.inner_se, _between_se(effect))


def _rounds_p_value(d: Array, null: float) -> float:
    """The sign test; where few rounds all agree, sharpened by how far they agree.

    Six rounds on one side give 0.031 however far they are, which no correction for several
    comparisons survives. There Student's t may lower it, to an eighth at most: t assumes noise
    without a long tail on one side, the sign test nothing.
    """
    p, n = sign_test(d, null), len(d)
    if not MIN_ROUNDS <= n < _MANY_ROUNDS or p > 2.0 ** (1 - n):
        return p
    se = float(np.std(d, ddof=1)) / math.sqrt(n)
    by_t = t_two_sided(abs(float(np.mean(d)) - null) / se, n - 1) if se else 0.0
    return min(p, max(by_t, p / _SHARPENED))


def _between_se(effect: Effect) -> float:
    return _se_of_median(effect.between_sd, len(effect.medians))


def _rounds_interval(d: Array, inflation: float, alpha: float) -> Interval:
    """Interval of the median of one process's rounds, widened by their dependence.

    A smaller alpha reaches further out among the rounds. Where the rounds end before that, they are
    dilated instead, and the interval then holds all of them: a few rounds whose signs happen to
    come in a row lose precision, not every bound.
    """
    shown = order_statistic_interval(d, _shrunk(alpha, inflation))
    if inflation <= 1.0 or math.isfinite(shown.half_width):
        return shown
    wide = order_statistic_interval(_dilated(d, inflation), alpha)
    return Interval(min(wide.low, float(d[0])), max(wide.high, float(d[-1])))


def _widened_p_value(d: Array, inflation: float, null: float) -> float:
    """Inverse of ``_rounds_interval``; ``d`` is sorted."""
    p = _grown(_rounds_p_value(d, null), inflation)
    if inflation <= 1.0 or d[0] <= null <= d[-1]:
        return p
    return min(p, _rounds_p_value(_dilated(d, inflation), null))


def _dilated(d: Array, inflation: float) -> Array:
    """The rounds spread about their median as far as independent ones of that variance would be."""
    centre = float(np.median(d))
    return centre + math.sqrt(inflation) * (d - centre)


def _shrunk(alpha: float, inflation: float) -> float:
    """The level whose interval for independent rounds is right at ``alpha`` for dependent ones."""
    if inflation <= 1.0:
        return alpha
    return normal_two_sided(normal_quantile(1 - alpha / 2) * math.sqrt(inflation))


def _grown(p: float, inflation: float) -> float:
    """Inverse of ``_shrunk``."""
    if inflation <= 1.0 or p >= 1.0:
        return p
    return normal_two_sided(-normal_quantile(max(p / 2, 1e-300)) / math.sqrt(inflation))


@dataclass(frozen=True)
class UnpairedEffect:
    """Log ratio of two sets of processes that share no rounds.

    Args:
        centre: Difference of the medians of the processes' medians.
        se: Its standard error; infinite where the rounds are too few to tell.
        df: Degrees of freedom; None where one process a side leaves only the rounds' own noise.
    """

    centre: float
    se: float
    df: int | None


def unpaired_effect(old: Sequence[Array], new: Sequence[Array]) -> UnpairedEffect:
    """New against old, each the logs of times ``[round]`` of one or more processes."""
    before, after = effect_of(old), effect_of(new)
    spread = [max(e.inner_se, _between_se(e)) for e in (before, after)]
    return UnpairedEffect(
        centre=after.centre - before.centre,
        se=math.hypot(*spread),
        df=_welch_df(spread, [len(e.medians) - 1 for e in (before, after)]),
    )


def _welch_df(spread: Sequence[float], dfs: Sequence[int]) -> int | None:
    """Welch-Satterthwaite degrees of freedom, rounded down."""
    total = sum(se**2 for se in spread)
    if 0 in dfs or not 0 < total < math.inf:
        return None if 0 in dfs else min(dfs)
    return int(total**2 / sum(se**4 / df for se, df in zip(spread, dfs, strict=True)))


def unpaired_interval(effect: UnpairedEffect, alpha: float = ALPHA) -> Interval:
    """Interval at confidence ``1 - alpha``: normal, or Student's t between several processes."""
    level = 1 - alpha / 2
    quantile = normal_quantile(level) if effect.df is None else t_quantile(level, effect.df)
    return Interval(effect.centre - quantile * effect.se, effect.centre + quantile * effect.se)


def unpaired_p_value(effect: UnpairedEffect, null: float = 0.0) -> float:
    """Two-sided p-value of the effect being ``null``; inverse of ``unpaired_interval``."""
    distance = abs(effect.centre - null)
    if distance == 0 or math.isinf(effect.se):
        return 1.0
    z = distance / effect.se if effect.se else math.inf
    return normal_two_sided(z) if effect.df is None else t_two_sided(z, effect.df)
