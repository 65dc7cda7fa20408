"""What is really run: cases of a sweep with weights, from a mix or from a file of requests."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.columns import AXES
from harness.errors import InvalidValueError

_WEIGHT_NAMES = ("weight", "count")


@dataclass(frozen=True)
class Demand:
    """Some calls of one kind.

    Args:
        axes: Values of axes that the calls have; axes left out are not asked for.
        weight: Number of calls, or their share.
    """

    axes: Mapping[str, Any]
    weight: float = 1.0


@dataclass(frozen=True)
class Weights:
    """Demands laid on measured cases.

    Args:
        by_case: Weight of each case key, summing to 1 - ``uncovered``.
        uncovered: Share of the demand that no measured case can stand for.
        examples: Some of what is not covered, as text.
    """

    by_case: Mapping[str, float]
    uncovered: float
    examples: tuple[str, ...]


def read_workload(text: str) -> list[Demand]:
    """Read ``seq_len=128:3,seq_len=2048;batch_size=4:1``: axes joined by `;`, weights after `:`.

    Raises:
        InvalidValueError: an axis is unknown or a weight is no positive number.
    """
    return [_read_demand(part) for part in text.split(",")]


def _read_demand(text: str) -> Demand:
    body, _, weight = text.partition(":")
    axes = dict(pair.partition("=")[::2] for pair in body.split(";"))
    return _demand({name.strip(): value.strip() for name, value in axes.items()}, weight or "1")


def read_requests(path: Path) -> list[Demand]:
    """Read a CSV of requests: columns are axes, and ``weight`` or ``count`` where lines have one.

    Equal lines are one demand with the sum of their weights.

    Raises:
        InvalidValueError: the file can't be read, or a column is no axis.
    """
    try:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
    except OSError as error:
        raise InvalidValueError("workload", "a readable CSV file", str(path)) from error
    totals: Counter[tuple[tuple[str, str], ...]] = Counter()
    for line in lines:
        axes = tuple((k, v) for k, v in line.items() if k not in _WEIGHT_NAMES)
        weight = next((line[name] for name in _WEIGHT_NAMES if name in line), "1")
        totals[axes] += _demand(dict(axes), weight).weight  # type: ignore[assignment]
    return [_demand(dict(axes), str(weight)) for axes, weight in totals.items()]


def _demand(axes: Mapping[str, str], weight: str) -> Demand:
    for name in axes:
        if name not in AXES:
            raise InvalidValueError("workload", "the name of an axis", name, AXES)
    try:
        number = float(weight)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise InvalidValueError("workload", "a positive weight", weight)
    return Demand({name: _typed(name, value) for name, value in axes.items()}, number)


def _typed(axis: str, value: str) -> Any:
    if axis == "seq_len":
        try:
            return int(value)
        except ValueError:
            raise InvalidValueError("workload", "a whole number for seq_len", value) from None
    return value


def weigh(cases: pd.DataFrame, demands: Iterable[Demand] | None) -> Weights:
    """Lay demands on the measured cases; without any, every case weighs the same.

    A length between two measured ones is shared between them, nearer ones getting more, so that
    time grows in a straight line from one to the other. Lengths beyond the measured range, and
    axes that no case has, are not covered.

    Args:
        cases: One line per case, with its axes.
    """
    if demands is None:
        keys = list(cases["case_key"])
        return Weights({key: 1 / len(keys) for key in keys}, 0.0, ())
    asked = list(demands)
    total = sum(demand.weight for demand in asked)
    by_case: Counter[str] = Counter()
    missing: dict[str, float] = {}
    for demand in asked:
        shares = _shares(cases, demand)
        if not shares:
            name = ", ".join(f"{axis}={value}" for axis, value in demand.axes.items())
            missing[name] = missing.get(name, 0.0) + demand.weight / total
        for key, share in shares.items():
            by_case[key] += share * demand.weight / total  # type: ignore[assignment]
    largest = sorted(missing, key=lambda name: -missing[name])[:5]
    return Weights(dict(by_case), sum(missing.values()), tuple(largest))


def _shares(cases: pd.DataFrame, demand: Demand) -> dict[str, float]:
    matching = cases
    for axis, value in demand.axes.items():
        if axis != "seq_len":
            matching = matching[matching[axis].astype(str) == str(value)]
    if not len(matching):
        return {}
    wanted = demand.axes.get("seq_len")
    lengths = {None: 1.0} if wanted is None else _length_shares(matching["seq_len"], float(wanted))
    shares: dict[str, float] = {}
    for length, share in lengths.items():
        at = matching if length is None else matching[matching["seq_len"] == length]
        shares |= {key: share / len(at) for key in at["case_key"]}
    return shares


def _length_shares(measured: pd.Series[Any], wanted: float) -> dict[Any, float]:
    lengths = np.array(sorted({float(length) for length in measured}))
    above = int(np.searchsorted(lengths, wanted))
    if above < len(lengths) and lengths[above] == wanted:
        return {wanted: 1.0}
    if above in (0, len(lengths)):
        return {}
    low, high = lengths[above - 1], lengths[above]
    share = float((wanted - low) / (high - low))
    return {low: 1 - share, high: share}
