"""Implementations within a run: ratio, interval and verdict of each against a reference.

Ratios are of times: 0.5 takes half as long as the reference. Verdicts are corrected twice: by Holm
for the comparisons within a case, by Benjamini-Hochberg for all of the sweep; intervals are those
of the single comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.analysis.pairs import CasePairs, control_of_run, pairs_by_case
from harness.errors import InvalidValueError
from harness.statistics.intervals import ALPHA, Effect, interval
from harness.statistics.verdicts import (
    Control,
    Evidence,
    Verdict,
    corrected,
    evidence_of,
    forecast_rounds,
    verdict_of,
    weaker,
)

DEFAULT_MARGIN = 0.03
BASELINE, BEST = "baseline", "best"
_TEXT = pd.StringDtype(storage="python")
COMPARISON_TYPES: dict[str, Any] = {
    "case_key": _TEXT,
    "implementation": _TEXT,
    "against": _TEXT,
    "verdict": _TEXT,
    "why": _TEXT,
    "ratio": "Float64",
    "ratio_low": "Float64",
    "ratio_high": "Float64",
    "p_value": "Float64",
    "multimodal": "boolean",
    "process_ratios": "object",
    "num_rounds": "Int64",
    "num_processes": "Int64",
    "forecast_rounds": "Int64",
}


@dataclass(frozen=True)
class Comparison:
    """One implementation against a reference in one case, before any correction."""

    pairs: CasePairs
    implementation: str
    against: str
    effect: Effect
    evidence: Evidence


def compare(
    rows: pd.DataFrame,
    against: str = BASELINE,
    margin: float = DEFAULT_MARGIN,
    alpha: float = ALPHA,
) -> pd.DataFrame:
    """Compare the implementations of a run, case by case.

    Args:
        rows: One run, as ``harness.load`` gives it.
        against: ``baseline``, ``best`` (the fastest of each case), or an implementation's name.
        margin: Smallest difference that matters, as a fraction; raised to twice the noise floor.
        alpha: Rate of false claims.

    Returns:
        One line per case and implementation with a reference to compare with, columns
        ``COMPARISON_TYPES``. ``why`` says what keeps a verdict from being drawn.

    Raises:
        InvalidValueError: ``rows`` hold several runs, or no row of the reference.
    """
    _require_one_run(rows)
    reference_of = _reference(rows, against, margin)
    control = control_of_run(rows)
    wide = control.margin(margin)
    by_case = [
        _case_comparisons(pairs, reference, wide)
        for pairs in pairs_by_case(rows).values()
        if (reference := reference_of(pairs)) is not None
    ]
    comparisons = [comparison for case in by_case for comparison in case]
    evidences = _corrected(by_case)
    lines = [
        _line(comparison, evidence, control, margin, alpha)
        for comparison, evidence in zip(comparisons, evidences, strict=True)
    ]
    return comparison_frame(lines)


def comparison_frame(lines: Sequence[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(lines, columns=list(COMPARISON_TYPES)).astype(COMPARISON_TYPES)


def _require_one_run(rows: pd.DataFrame) -> None:
    runs = sorted(rows["run_id"].unique())
    if len(runs) > 1:
        raise InvalidValueError("rows", "the rows of one run", ", ".join(runs))


def _reference(
    rows: pd.DataFrame, against: str, margin: float
) -> Callable[[CasePairs], str | None]:
    names = sorted(rows["implementation"].unique())
    if against not in (BASELINE, BEST, *names):
        raise InvalidValueError("against", "a reference", against, (BASELINE, BEST, *names))
    if against == BASELINE:
        return lambda pairs: pairs.baseline
    if against == BEST:
        return lambda pairs: fastest(pairs, margin)
    return lambda pairs: against if against in pairs.implementations else None


def fastest(pairs: CasePairs, margin: float) -> str | None:
    """The implementation with the smallest ratio to the reference, which itself has 1."""
    reference = pairs.reference
    if reference is None:
        return None
    ratios = {reference: 0.0}
    for name in pairs.implementations:
        effect = pairs.effect(name, reference, margin)
        if effect is not None and name != reference:
            ratios[name] = effect.centre
    return min(ratios, key=lambda name: (ratios[name], name))


def _case_comparisons(pairs: CasePairs, reference: str, margin: float) -> list[Comparison]:
    found = []
    for name in pairs.implementations:
        effect = pairs.effect(name, reference, math.log1p(margin)) if name != reference else None
        if effect is not None:
            evidence = evidence_of(effect, pairs.margin(margin))
            found.append(Comparison(pairs, name, reference, effect, evidence))
    return found


def _corrected(by_case: Sequence[Sequence[Comparison]]) -> list[Evidence]:
    """Evidence that stands within its case (Holm) and in the sweep as a whole (BH)."""
    within = [e for case in by_case for e in corrected([c.evidence for c in case], "holm")]
    everywhere = corrected([c.evidence for case in by_case for c in case], "bh")
    return [weaker(one, other) for one, other in zip(within, everywhere, strict=True)]


def corrected_verdicts(
    comparisons: Sequence[Comparison], control: Control, alpha: float
) -> list[Verdict]:
    """Verdicts of one case's comparisons, corrected within the case."""
    evidences = corrected([c.evidence for c in comparisons], "holm")
    return [
        guarded(c, verdict_of(c.effect.centre, e, alpha), control)[0]
        for c, e in zip(comparisons, evidences, strict=True)
    ]


def guarded(comparison: Comparison, verdict: Verdict, control: Control) -> tuple[Verdict, str]:
    """What the guards leave of a verdict, and why."""
    pairs = comparison.pairs
    if pairs.implausible & {comparison.implementation, comparison.against}:
        return Verdict.UNTRUSTED, "quicker than this machine's measured ceiling"
    if pairs.is_dependent(comparison.implementation, comparison.against):
        return Verdict.INCONCLUSIVE, "dependent: rounds follow each other too closely"
    sure = (Verdict.FASTER, Verdict.SLOWER, Verdict.INCONCLUSIVE)
    if pairs.noisy and verdict not in (Verdict.FASTER, Verdict.SLOWER):
        return Verdict.INCONCLUSIVE, pairs.noisy
    if not control.trusted and verdict not in sure:
        return Verdict.UNTRUSTED, "the run's own control failed"
    return verdict, ""


def _line(
    comparison: Comparison, evidence: Evidence, control: Control, margin: float, alpha: float
) -> dict[str, Any]:
    effect = comparison.effect
    shown = interval(effect, alpha)
    verdict = verdict_of(effect.centre, evidence, alpha)
    verdict, why = guarded(comparison, verdict, control)
    unsure = verdict is Verdict.INCONCLUSIVE
    wide = comparison.pairs.margin(control.margin(margin))
    needed = forecast_rounds(effect, wide, alpha) if unsure else None
    if unsure and not why:
        why = f"about {needed} rounds would tell" if needed else "too few rounds"
    return {
        "case_key": comparison.pairs.case_key,
        "implementation": comparison.implementation,
        "against": comparison.against,
        "verdict": verdict.value,
        "why": why,
        "ratio": math.exp(effect.centre),
        "ratio_low": math.exp(shown.low),
        "ratio_high": math.exp(shown.high) if shown.high < math.inf else None,
        "p_value": evidence.different,
        "multimodal": effect.multimodal,
        "process_ratios": tuple(math.exp(median) for median in effect.medians),
        "num_rounds": effect.num_rounds,
        "num_processes": len(effect.medians),
        "forecast_rounds": needed,
    }


def case_comparisons_with_best(
    pairs: CasePairs, margin: float
) -> tuple[str | None, list[Comparison]]:
    """The fastest of a case and all others against it."""
    best = fastest(pairs, margin)
    return best, _case_comparisons(pairs, best, margin) if best is not None else []


def slower_than(lines: Iterable[tuple[Comparison, Verdict]]) -> set[str]:
    """Names that are certainly slower than their reference."""
    return {comparison.implementation for comparison, verdict in lines if verdict.is_slower}
