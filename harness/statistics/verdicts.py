"""From intervals to words: verdicts, multiplicity, the best set, the forecast, the A/A control.

A verdict never says "same" for want of evidence: ``equivalent`` is claimed only where the whole
interval lies inside the margin, and what can't be told yet is ``inconclusive`` with a forecast of
the rounds that would tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from harness.statistics.dependence import MIN_ROUNDS, Array
from harness.statistics.intervals import (
    ALPHA,
    Effect,
    interval,
    order_statistic_interval,
    p_value,
)

SHADOW_REJECTION_RATE = 0.05
NOISE_FLOOR_QUANTILE = 0.95


class Verdict(StrEnum):
    """How one implementation compares with another."""

    FASTER = "faster"  # by more than the margin
    SLOWER = "slower"
    FASTER_SLIGHTLY = "faster*"  # certainly faster, perhaps by less than the margin
    SLOWER_SLIGHTLY = "slower*"
    EQUIVALENT = "equivalent"  # certainly within the margin
    INCONCLUSIVE = "inconclusive"
    UNTRUSTED = "untrusted"  # a guard failed

    @property
    def is_slower(self) -> bool:
        return self in (Verdict.SLOWER, Verdict.SLOWER_SLIGHTLY)

    @property
    def is_faster(self) -> bool:
        return self in (Verdict.FASTER, Verdict.FASTER_SLIGHTLY)


@dataclass(frozen=True)
class Evidence:
    """P-values of one comparison against the three hypotheses that a verdict rejects.

    Args:
        different: Against "no difference".
        beyond: Against "at most the margin".
        within: Against "at least the margin".
    """

    different: float
    beyond: float
    within: float


def evidence_of(effect: Effect, margin: float) -> Evidence:
    """The p-values of an effect, for a margin given as a fraction."""
    return evidence_from(effect.centre, lambda null: p_value(effect, null), margin)


def evidence_from(centre: float, p_of: Callable[[float], float], margin: float) -> Evidence:
    """The same for any estimate with a two-sided p-value for each hypothetical log ratio."""
    m = math.log1p(margin)
    at_low, at_high = p_of(-m), p_of(m)
    return Evidence(
        different=p_of(0.0),
        beyond=(at_high if centre > m else at_low) if abs(centre) > m else 1.0,
        within=max(at_low, at_high) if abs(centre) < m else 1.0,
    )


def verdict_of(centre: float, evidence: Evidence, alpha: float = ALPHA) -> Verdict:
    """The strongest word that the evidence bears."""
    faster = centre < 0
    if evidence.beyond <= alpha:
        return Verdict.FASTER if faster else Verdict.SLOWER
    if evidence.within <= alpha:
        return Verdict.EQUIVALENT
    if evidence.different <= alpha:
        return Verdict.FASTER_SLIGHTLY if faster else Verdict.SLOWER_SLIGHTLY
    return Verdict.INCONCLUSIVE


def judge(effect: Effect, margin: float, alpha: float = ALPHA) -> Verdict:
    """Verdict of a single comparison, made for its own sake."""
    return verdict_of(effect.centre, evidence_of(effect, margin), alpha)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values: rejecting those up to alpha errs anywhere with chance alpha."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """BH-adjusted p-values: of those rejected up to alpha, a share of alpha is expected wrong."""
    n = len(p_values)
    order = sorted(range(n), key=lambda i: p_values[i], reverse=True)
    adjusted, running = [0.0] * n, 1.0
    for rank, i in enumerate(order):
        running = min(running, p_values[i] * n / (n - rank))
        adjusted[i] = running
    return adjusted


def corrected(evidences: Sequence[Evidence], adjust: str = "holm") -> list[Evidence]:
    """The same evidence adjusted over all comparisons (``holm`` or ``bh``).

    "Beyond" and "within" are adjusted together: they exclude each other, so a comparison can be
    decided wrongly in one way only, and those that are decided leave the family.
    """
    adjustment = {"holm": holm, "bh": benjamini_hochberg}[adjust]
    different = adjustment([e.different for e in evidences])
    decided = adjustment([min(e.beyond, e.within) for e in evidences])
    return [
        Evidence(d, p if e.beyond < e.within else 1.0, p if e.within < e.beyond else 1.0)
        for e, d, p in zip(evidences, different, decided, strict=True)
    ]


def weaker(one: Evidence, other: Evidence) -> Evidence:
    """What both bear: the larger p-value of each hypothesis."""
    return Evidence(
        max(one.different, other.different),
        max(one.beyond, other.beyond),
        max(one.within, other.within),
    )


def best_set(verdicts_against_best: Sequence[Verdict]) -> list[int]:
    """Positions of all that are not slower than the best; the best's own verdict counts too."""
    return [i for i, verdict in enumerate(verdicts_against_best) if not verdict.is_slower]


def forecast_rounds(effect: Effect, margin: float, alpha: float = ALPHA) -> int | None:
    """Rounds after which an effect of this size would get a verdict; None where none ever will.

    The interval shrinks with the square root of the rounds; it must get shorter than the way from
    the estimate to what it has to exclude: no difference, or the margin.
    """
    half_width = interval(effect, alpha).half_width
    distance = max(abs(effect.centre), abs(abs(effect.centre) - math.log1p(margin)))
    if not math.isfinite(half_width) or distance == 0:
        return None
    needed = math.ceil(effect.num_rounds * (half_width / distance) ** 2)
    return max(needed, effect.num_rounds + 1)


@dataclass(frozen=True)
class Control:
    """The run's own control: the baseline against its second copy, in every case and pass.

    Args:
        num_comparisons: Shadow comparisons made.
        num_rejected: Those whose interval excludes "no difference"; wrong by construction.
        allowed: Rejections that chance explains.
        noise_floor: 95th percentile of the shadows' absolute effect, as a fraction.
        largest: The largest of them, as a fraction.
    """

    num_comparisons: int
    num_rejected: int
    allowed: int
    noise_floor: float
    largest: float

    @property
    def trusted(self) -> bool:
        return self.num_rejected <= self.allowed

    def margin(self, wanted: float) -> float:
        """The smallest difference that this run can call one, not below what the user wants.

        Twice the noise floor; twice the largest effect of any shadow where the control has failed.
        """
        return max(wanted, 2 * (self.noise_floor if self.trusted else self.largest))


def control_of(
    shadows: Sequence[Array], quiet: Sequence[Array] | None = None, alpha: float = ALPHA
) -> Control:
    """The control of a run from the shadow differences ``[round]`` of each case and pass.

    Args:
        shadows: All of them; those of too few rounds for an interval don't count.
        quiet: Those that the noise floor is taken from; all when left out or empty.
    """
    measured = [d for d in shadows if len(d) >= MIN_ROUNDS]
    calm = [d for d in (quiet or ()) if len(d) >= MIN_ROUNDS] or measured
    rejected = [d for d in measured if not order_statistic_interval(d, alpha).contains(0.0)]
    effects = [abs(float(np.median(d))) for d in calm]
    floor = float(np.quantile(effects, NOISE_FLOOR_QUANTILE)) if effects else 0.0
    return Control(
        num_comparisons=len(measured),
        num_rejected=len(rejected),
        allowed=allowed_rejections(len(measured)),
        noise_floor=math.expm1(floor),
        largest=math.expm1(max(effects, default=0.0)),
    )


def allowed_rejections(n: int, rate: float = SHADOW_REJECTION_RATE) -> int:
    """95 % quantile of Bin(n, rate): rejections among n that chance explains; 15 of 200."""
    cumulated, term, k = 0.0, (1 - rate) ** n, 0
    while True:
        cumulated += term
        if cumulated >= 1 - ALPHA or k >= n:
            return k
        term *= (n - k) / (k + 1) * rate / (1 - rate)
        k += 1
