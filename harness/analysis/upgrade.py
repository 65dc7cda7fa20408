"""What a remeasurement of two environments says: paired verdicts, control and exactness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.analysis.between import ERROR_TOLERANCE, RunComparison
from harness.analysis.compare import DEFAULT_MARGIN
from harness.remeasure import NEW, OLD, SHADOW, Remeasured
from harness.statistics.dependence import Array
from harness.statistics.intervals import ALPHA, Effect, effect_of, interval, paired_differences
from harness.statistics.verdicts import (
    Evidence,
    Verdict,
    control_of,
    corrected,
    evidence_of,
    forecast_rounds,
    verdict_of,
)


def upgrade(
    found: Sequence[Remeasured],
    types: Mapping[str, Any],
    margin: float = DEFAULT_MARGIN,
    alpha: float = ALPHA,
) -> RunComparison:
    """The remeasurement as a comparison of two runs; ratios are new over old.

    Args:
        types: Columns of the table: ``harness.analysis.between.BETWEEN_TYPES``.
    """
    control = control_of([d for pair in found for d in _differences(pair, SHADOW)])
    wide = control.margin(margin)
    effects = [_effect(pair, wide) for pair in found]
    measured = [effect for effect in effects if effect is not None]
    evidences = iter(corrected([evidence_of(effect, wide) for effect in measured], "bh"))
    lines = [
        _line(pair, effect, next(evidences) if effect is not None else None, wide, alpha)
        for pair, effect in zip(found, effects, strict=True)
    ]
    said = (
        "Paired: both environments took turns, round by round.",
        f"{control.num_rejected} of {control.num_comparisons} comparisons of the old environment "
        f"with itself rejected, margin {100 * wide:.3g} %.",
        *(() if control.trusted else ("UNTRUSTED: the control failed; the margin is raised.",)),
    )
    table = pd.DataFrame(lines, columns=list(types)).astype(dict(types))
    return RunComparison(table, (), _versions(found), said, wide)


def _differences(pair: Remeasured, side: str) -> list[Array]:
    return [
        paired_differences(times, old)
        for times, old in zip(pair.times_s[side], pair.times_s[OLD], strict=True)
    ]


def _effect(pair: Remeasured, margin: float) -> Effect | None:
    differences = [d for d in _differences(pair, NEW) if len(d)]
    return effect_of(differences, math.log1p(margin)) if differences else None


def _versions(found: Sequence[Remeasured]) -> tuple[str, ...]:
    changes = {
        f"{pair.implementation}: {pair.versions[OLD]} -> {pair.versions[NEW]}": None
        for pair in found
        if pair.versions.get(OLD) != pair.versions.get(NEW)
    }
    return tuple(changes)


def _line(
    pair: Remeasured, effect: Effect | None, evidence: Evidence | None, margin: float, alpha: float
) -> dict[str, Any]:
    line: dict[str, Any] = {
        "case_key": pair.case.key,
        "case_id": pair.case.id,
        "implementation": pair.implementation,
        "status_old": pair.statuses[OLD],
        "status_new": pair.statuses[NEW],
        "median_s_old": _median(pair, OLD),
        "median_s_new": _median(pair, NEW),
        "worst_scaled_u_old": _worst(pair, OLD),
        "worst_scaled_u_new": _worst(pair, NEW),
        "verdict": "none",
        "why": "; ".join(dict.fromkeys((*pair.reasons[OLD], *pair.reasons[NEW]))),
    }
    if effect is not None and evidence is not None:
        shown, verdict = interval(effect, alpha), verdict_of(effect.centre, evidence, alpha)
        needed = forecast_rounds(effect, margin, alpha)
        unsure = verdict is Verdict.INCONCLUSIVE
        line |= {
            "ratio": math.exp(effect.centre),
            "ratio_low": math.exp(shown.low),
            "ratio_high": math.exp(shown.high) if math.isfinite(shown.high) else None,
            "verdict": verdict.value,
            "why": f"about {needed} rounds would tell" if unsure and needed else "",
        }
    return line | {"findings": "; ".join(_findings(line))}


def _findings(line: Mapping[str, Any]) -> list[str]:
    before, after = line["status_old"], line["status_new"]
    found = [str(after)] if after not in ("ok", before) else []
    found += [line["verdict"]] if line["verdict"] in ("slower", "faster") else []
    old, new = line["worst_scaled_u_old"], line["worst_scaled_u_new"]
    if old is not None and new is not None and new > old * ERROR_TOLERANCE:
        found.append("less_exact")
    return found


def _median(pair: Remeasured, side: str) -> float | None:
    minima = [min(calls) for times in pair.times_s[side] for calls in times if calls]
    return float(pd.Series(minima).median()) if minima else None


def _worst(pair: Remeasured, side: str) -> float | None:
    found = [measures.get("scaled_u") for measures in pair.errors.get(side, {}).values()]
    numbers = [float(value) for value in found if value is not None]
    return max(numbers, default=None)
