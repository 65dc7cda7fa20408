"""What to measure next, where a decision is not sharp yet: new lengths, and more passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.cells import varying_axes
from harness.analysis.crossover import Crossover
from harness.analysis.decide import Decision

_WIDE = 1.1  # a crossover whose interval spans less than this is sharp enough
_MULTIPLE = 16
_ONE_SIDED = 2.0


@dataclass(frozen=True)
class Refinement:
    """Points of a sweep that would sharpen a decision, each with the axes that vary in the run.

    Args:
        new: Points that the run does not have.
        again: Points of cases whose best set is not resolved; they need more passes.
    """

    new: tuple[Mapping[str, Any], ...]
    again: tuple[Mapping[str, Any], ...]

    @property
    def is_empty(self) -> bool:
        return not self.new and not self.again


def refinement(decision: Decision) -> Refinement:
    """A length inside every wide crossover between the fastest, and every unresolved case."""
    cases = decision.cells
    fastest = dict(zip(cases["case_key"], cases["fastest"], strict=True))
    wide = [
        crossover
        for crossover in decision.crossovers
        if [crossover.below, crossover.above] == [fastest.get(key) for key in crossover.cases]
        and _span(crossover) > _WIDE
    ]
    new: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for crossover in wide:
        value = _between(crossover, cases)
        if value is not None:
            point = {**crossover.fixed, crossover.axis: value}
            new[tuple(point.items())] = point
    axes = varying_axes(cases)
    unresolved = cases[(cases["state"] == "unresolved") & (cases["weight"] > 0)]
    again = [_point(case, axes) for case in unresolved.to_dict("records")]
    return Refinement(tuple(new.values()), tuple(again))


def _span(crossover: Crossover) -> float:
    if crossover.low is None or crossover.high is None:
        return _ONE_SIDED
    return crossover.high / crossover.low


def _between(crossover: Crossover, cases: pd.DataFrame) -> int | None:
    """A round value near the estimate, strictly between its measured neighbours."""
    by_key = dict(zip(cases["case_key"], cases[crossover.axis], strict=True))
    low, high = (int(by_key[key]) for key in crossover.cases)
    rounded = round(crossover.estimate / _MULTIPLE) * _MULTIPLE
    for value in (rounded, (low + high) // 2):
        if low < value < high:
            return value
    return None


def _point(case: Mapping[Any, Any], axes: list[str]) -> dict[str, Any]:
    values = {axis: case[axis] for axis in axes}
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in values.items()}
