"""The statistics on noise of known kind: no time is measured here.

Differences per round are drawn, so the truth is known exactly: intervals must hold it, flags must
be raised where rounds are not alike, and not where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from harness.selfcheck.outcome import Effort, Outcome
from harness.statistics.dependence import Array, has_drift, is_autocorrelated, is_dependent
from harness.statistics.intervals import effect_of, interval
from harness.statistics.verdicts import Verdict, corrected, evidence_of, judge, verdict_of

_ROUNDS = 68
_MARGIN = 0.03
_SIGMA = 0.03
Rng = np.random.Generator


def _normal(rng: Rng) -> Array:
    return rng.normal(0, _SIGMA, _ROUNDS)


def _lognormal(rng: Rng) -> Array:
    return np.exp(rng.normal(0, 1, _ROUNDS)) * _SIGMA - _SIGMA


def _spikes(rng: Rng) -> Array:
    return _normal(rng) + (rng.random(_ROUNDS) < 0.1) * rng.exponential(1.0, _ROUNDS)


def _bimodal(rng: Rng) -> Array:
    return _normal(rng) + np.where(rng.random(_ROUNDS) < 0.5, -0.05, 0.05)


def _autoregressive(coefficient: float) -> Callable[[Rng], Array]:
    def draw(rng: Rng) -> Array:
        noise = rng.normal(0, _SIGMA * math.sqrt(1 - coefficient**2), _ROUNDS)
        values = np.empty(_ROUNDS)
        last = rng.normal(0, _SIGMA)
        for i, step in enumerate(noise):
            last = coefficient * last + step
            values[i] = last
        return values

    return draw


def _drift(rng: Rng) -> Array:
    return _normal(rng) + np.linspace(-0.1, 0.1, _ROUNDS)


def _step(rng: Rng) -> Array:
    return _normal(rng) + np.where(np.arange(_ROUNDS) < rng.integers(20, 48), -0.08, 0.08)


def _saw_tooth(rng: Rng) -> Array:
    return _normal(rng) + 0.2 * ((np.arange(_ROUNDS) / 17) % 1 - 0.5)


_INDEPENDENT = {
    "normal": _normal,
    "lognormal": _lognormal,
    "spikes": _spikes,
    "bimodal": _bimodal,
}
_MILDLY_DEPENDENT = {"AR 0.3": _autoregressive(0.3), "AR 0.5": _autoregressive(0.5)}
_NOT_ALIKE = {
    "AR 0.8": _autoregressive(0.8),
    "drift": _drift,
    "step": _step,
    "saw-tooth": _saw_tooth,
}


def check_synthetic_noise(effort: Effort) -> list[Outcome]:
    """Intervals and flags on drawn rounds."""
    return [*_coverage(effort), *_flags(effort)]


def _coverage(effort: Effort) -> Iterator[Outcome]:
    for kinds, accepted in ((_INDEPENDENT, 0.07), (_MILDLY_DEPENDENT, 0.10)):
        for name, draw in kinds.items():
            rng = np.random.default_rng(1)
            truth = _median_of(name)
            misses = 0
            for _ in range(effort.simulations):
                misses += not interval(effect_of([draw(rng)])).contains(truth)
            rate = misses / effort.simulations
            limit = accepted + 1.64 * math.sqrt(accepted * (1 - accepted) / effort.simulations)
            yield Outcome(
                f"simulated {name}: intervals",
                f"{rate:.1%} miss the truth",
                f"at most {accepted:.0%} and chance ({limit:.1%})",
                rate <= limit,
            )


def _median_of(name: str) -> float:
    """The true median; by a large draw where it has no closed form."""
    if name == "spikes":
        rng = np.random.default_rng(2)
        return float(np.median(np.concatenate([_spikes(rng) for _ in range(20_000)])))
    return 0.0


def _flags(effort: Effort) -> Iterator[Outcome]:
    for kinds, is_due in ((_INDEPENDENT, False), (_NOT_ALIKE, True)):
        for name, draw in kinds.items():
            rng = np.random.default_rng(3)
            raised = sum(_is_flagged(draw(rng)) for _ in range(effort.simulations))
            rate = raised / effort.simulations
            slack = 1.64 * math.sqrt(0.05 * 0.95 / effort.simulations)
            accepted = "at least 95 %" if is_due else "at most 5 %"
            passed = rate >= 0.95 - slack if is_due else rate <= 0.05 + slack
            yield Outcome(f"simulated {name}: flag", f"raised in {rate:.1%}", accepted, passed)


def _is_flagged(d: Array) -> bool:
    return is_autocorrelated(d) or is_dependent(d) or has_drift(d, _MARGIN)


def check_equivalence(effort: Effort) -> list[Outcome]:
    """``equivalent`` where it is true, hardly ever at the margin, never beyond it."""
    outcomes = []
    for truth, accepted, at_least in ((0.0, 0.95, True), (0.03, 0.05, False), (0.05, 0.005, False)):
        rng = np.random.default_rng(4)
        claims = 0
        for _ in range(effort.simulations):
            d = math.log1p(truth) + rng.normal(0, _SIGMA, 2 * _ROUNDS)
            claims += judge(effect_of([d]), _MARGIN) is Verdict.EQUIVALENT
        rate = claims / effort.simulations
        slack = 1.64 * math.sqrt(accepted * (1 - accepted) / effort.simulations)
        passed = rate >= accepted - slack if at_least else rate <= accepted + slack
        word = "at least" if at_least else "at most"
        outcomes.append(
            Outcome(
                f"equivalence at 3 %, truth {truth:.0%}",
                f"claimed in {rate:.1%}",
                f"{word} {accepted:.1%} and chance",
                passed,
            )
        )
    return outcomes


def check_many_comparisons(effort: Effort) -> list[Outcome]:
    """Cases without any difference, five implementations each: how many cases claim one?"""
    rng = np.random.default_rng(5)
    num_cases = max(100, effort.simulations // 4)
    claimed = 0
    for _ in range(num_cases):
        effects = [effect_of([rng.normal(0, _SIGMA, 30)]) for _ in range(4)]
        evidence = corrected([evidence_of(e, _MARGIN) for e in effects])
        verdicts = [verdict_of(e.centre, v) for e, v in zip(effects, evidence, strict=True)]
        claimed += any(v.is_slower or v.is_faster for v in verdicts)
    rate = claimed / num_cases
    limit = 0.065 + 1.64 * math.sqrt(0.05 * 0.95 / num_cases)
    figure = f"{rate:.1%} of {num_cases} cases claim one"
    name = "no difference, 5 implementations (Holm)"
    return [Outcome(name, figure, "at most 6.5 % and chance", rate <= limit)]


def check_process_modes(effort: Effort) -> list[Outcome]:
    """A quarter of the processes 80 % slower: is the run called multimodal?"""
    outcomes = []
    for passes, accepted in ((6, 0.80), (11, 0.95)):
        rng = np.random.default_rng(6)
        called = 0
        for _ in range(effort.simulations):
            shifts = np.where(rng.random(passes) < 0.25, math.log(1.8), 0.0)
            called += effect_of([s + rng.normal(0, 0.01, 30) for s in shifts]).multimodal
        rate = called / effort.simulations
        slack = 1.64 * math.sqrt(accepted * (1 - accepted) / effort.simulations)
        outcomes.append(
            Outcome(
                f"planted process mode, {passes} passes",
                f"MULTIMODAL in {rate:.1%}",
                f"at least {accepted:.0%} and chance",
                rate >= accepted - slack,
            )
        )
    return outcomes
