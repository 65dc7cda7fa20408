"""The best of each case: a set, for what can't be told apart from the best is not worse than it.

State of a case: ``clear`` (one is faster than all others), ``tie`` (the others of the set are
within the margin of the fastest), ``unresolved`` (at least one of the set might be slower by more
than the margin), ``only`` (one implementation is right here), ``none``.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from harness.analysis.compare import (
    DEFAULT_MARGIN,
    Comparison,
    case_comparisons_with_best,
    corrected_verdicts,
)
from harness.analysis.pairs import CasePairs, control_of_run, pairs_by_case
from harness.statistics.intervals import ALPHA, interval
from harness.statistics.verdicts import Control, Verdict

_TEXT = pd.StringDtype(storage="python")
WINNER_TYPES: dict[str, Any] = {
    "case_key": _TEXT,
    "state": _TEXT,
    "fastest": _TEXT,
    "best": "object",
    "runner_up": _TEXT,
    "runner_up_ratio": "Float64",
    "runner_up_low": "Float64",
    "runner_up_high": "Float64",
}


def winners(
    rows: pd.DataFrame,
    margin: float = DEFAULT_MARGIN,
    alpha: float = ALPHA,
    control: Control | None = None,
) -> pd.DataFrame:
    """The best set of each case, columns ``WINNER_TYPES``.

    ``best`` is a tuple of names, the fastest first. ``runner_up`` is the fastest that is not in the
    set, ``none`` without one; its ratio is to the fastest.

    Args:
        control: The run's own control, where ``rows`` are only a part of the run.
    """
    control = control_of_run(rows) if control is None else control
    lines = [
        _winner(pairs, control, control.margin(margin), alpha)
        for pairs in pairs_by_case(rows).values()
    ]
    return pd.DataFrame(lines, columns=list(WINNER_TYPES)).astype(WINNER_TYPES)


def _winner(pairs: CasePairs, control: Control, margin: float, alpha: float) -> dict[str, Any]:
    fastest, comparisons = case_comparisons_with_best(pairs, margin)
    verdicts = corrected_verdicts(comparisons, control, alpha)
    judged = sorted(zip(comparisons, verdicts, strict=True), key=lambda j: j[0].effect.centre)
    members = [(c, v) for c, v in judged if not v.is_slower]
    losers = [c for c, v in judged if v.is_slower]
    best = (fastest, *(c.implementation for c, _ in members)) if fastest is not None else ()
    line = {
        "case_key": pairs.case_key,
        "state": _state(best, [v for _, v in members], losers),
        "fastest": fastest or "none",
        "best": best,
        "runner_up": losers[0].implementation if losers else "none",
    }
    return line | _runner_up(losers, alpha)


def _state(best: tuple[str, ...], members: list[Verdict], losers: list[Comparison]) -> str:
    if not best:
        return "none"
    if len(best) > 1:
        return "tie" if all(v is Verdict.EQUIVALENT for v in members) else "unresolved"
    return "clear" if losers else "only"


def _runner_up(losers: list[Comparison], alpha: float) -> dict[str, float | None]:
    if not losers:
        return {"runner_up_ratio": None, "runner_up_low": None, "runner_up_high": None}
    effect = losers[0].effect
    shown = interval(effect, alpha)
    return {
        "runner_up_ratio": math.exp(effect.centre),
        "runner_up_low": math.exp(shown.low),
        "runner_up_high": math.exp(shown.high),
    }
