"""Parts of sentences: names joined, cases called by what varies, costs with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.analysis.crossover import Crossover
from harness.analysis.regret import Regret
from harness.report import numbers
from harness.report.tables import AXIS_LABELS, axis_text

MANY = 6


@dataclass(frozen=True)
class Sentence:
    """One statement, and the cases that it rests on.

    Args:
        is_main: It belongs on a first screen that has room for a few lines only.
    """

    text: str
    case_keys: tuple[str, ...] = ()
    is_main: bool = False


def either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def together(names: Sequence[str]) -> str:
    if len(names) > MANY:
        return f"{len(names)} implementations"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def readable_policy(policy: str) -> str:
    """A two-way rule with the axis as people call it."""
    for axis, label in AXIS_LABELS.items():
        policy = policy.replace(f"up to {axis} ", f"up to {label} ")
    return policy


def cost_text(choice: Regret) -> str:
    """``12 % [10 %, 14 %] more time``; from twice the time on, ``2.6x [2.4, 2.9] the time``."""
    if not math.isfinite(choice.high):
        return f"{numbers.percent(choice.regret)} more time as measured (no interval yet)"
    if choice.regret >= 1:
        return f"{numbers.ratio(1 + choice.regret, 1 + choice.low, 1 + choice.high)} the time"
    return f"{numbers.percent(choice.regret)} {regret_range(choice)} more time"


def regret_range(choice: Regret) -> str:
    """The interval of a cost; in words where nothing bounds it."""
    if not math.isfinite(choice.high):
        return "too few rounds"
    return f"[{numbers.percent(choice.low)}, {numbers.percent(choice.high)}]"


def crossover_text(crossover: Crossover) -> str:
    """``a is faster up to length about 700 [650, 760], b beyond (hidden 768, heads 8)``."""
    label = AXIS_LABELS.get(crossover.axis, crossover.axis)
    place = line_text(crossover.fixed)
    return (
        f"{crossover.below} is faster up to {label} about {crossover.estimate:.0f} "
        f"{crossover_range(crossover)}, {crossover.above} beyond" + (f" ({place})" if place else "")
    )


def crossover_range(crossover: Crossover) -> str:
    low = "below" if crossover.low is None else f"{crossover.low:.0f}"
    high = "beyond" if crossover.high is None else f"{crossover.high:.0f}"
    return f"[{low}, {high}]"


def line_text(fixed: Mapping[str, Any]) -> str:
    return ", ".join(f"{AXIS_LABELS.get(a, a)} {axis_text(v)}" for a, v in fixed.items())


def case_labels(cases: pd.DataFrame, axes: Sequence[str]) -> dict[str, str]:
    """Case key to a short text that names what varies."""
    return {
        str(case["case_key"]): line_text({axis: case[axis] for axis in axes})
        or str(case["case_id"])
        for case in cases.drop_duplicates("case_key").to_dict("records")
    }


def shared_axes(cases: pd.DataFrame, keys: Sequence[str], axes: Sequence[str]) -> str:
    """Values that all these cases and few others have: ``length 512 or 1024``."""
    inside = cases[cases["case_key"].isin(keys)]
    said = []
    for axis in axes:
        values = sorted(inside[axis].unique().tolist())
        if len(values) < cases[axis].nunique() and len(values) <= MANY:
            listed = either([axis_text(value) for value in values])
            said.append(f"{AXIS_LABELS.get(axis, axis)} {listed}")
    return ", ".join(said)
