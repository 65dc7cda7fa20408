"""A cost law per implementation, fitted on its rows, to predict cells that were not measured.

Seconds = a + b * bytes + c * pairs + d * FLOPs, with coefficients of at least 0: a call's fixed
cost, the bytes that must move, the softmax of every (query, key) pair, and the products. Of all
subsets of the terms that one counts which predicts left-out cells best; its errors there make the
interval. No law is used where they are large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness import cost
from harness.analysis.cells import cells_of, is_ok
from harness.attention import Case
from harness.columns import AXES
from harness.errors import InvalidValueError
from harness.statistics.intervals import ALPHA
from harness.statistics.quantiles import t_quantile

SIZES = (
    "batch_size",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "seq_len",
    "kv_seq_len",
)
_DERIVED = ("num_kv_heads", "head_dim", "kv_seq_len", "scale")
_CIRCUMSTANCES = [axis for axis in AXES if axis not in (*SIZES, "scale", "seed")]
_TERMS = ("fixed", "bytes", "pairs", "flops")
_MAX_HELD_OUT_ERROR = 0.25
_MIN_SPARE_CELLS = 3
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """The fitted cost law of one implementation under one set of circumstances.

    Args:
        coefficients: Seconds per unit of each term in use.
        held_out: Absolute log errors of every cell, predicted by the others.
        spread: Standard deviation of those errors.
        num_cells: Cells that it was fitted on.
        ranges: Measured range of each size and of the FLOPs.
    """

    implementation: str
    circumstances: Mapping[str, Any]
    coefficients: Mapping[str, float]
    held_out: tuple[float, ...]
    spread: float
    num_cells: int
    ranges: Mapping[str, tuple[float, float]]

    @property
    def held_out_error(self) -> float:
        """Median error of a left-out cell, as a fraction."""
        return math.expm1(float(np.median(self.held_out)))


@dataclass(frozen=True)
class Prediction:
    """Seconds of a cell that was not measured.

    Args:
        seconds: None where no law holds; ``why`` says the reason.
        extrapolated: Sizes beyond what was measured, as text.
    """

    implementation: str
    case: Case
    seconds: float | None
    low: float | None = None
    high: float | None = None
    held_out_error: float | None = None
    num_cells: int = 0
    extrapolated: tuple[str, ...] = ()
    why: str = ""


def predict(rows: pd.DataFrame, alpha: float = ALPHA, **axes: object) -> list[Prediction]:
    """Predict every implementation on a case, by laws fitted on ``rows``.

    Args:
        axes: Axes of the wanted case; those left out are as in the run's cells, where these agree.

    Raises:
        InvalidValueError: an axis is unknown, left out though the run has several values of it, or
            the case can't exist.
    """
    cells = cells_of(rows)
    case = wanted_case(cells, axes)
    fitting = cells[is_ok(cells)]
    for axis in _CIRCUMSTANCES:
        fitting = fitting[fitting[axis] == case.to_dict()[axis]]
    return [
        _predict_one(name, fitting[fitting["implementation"] == name], case, alpha)
        for name in sorted(cells["implementation"].unique())
    ]


def wanted_case(cells: pd.DataFrame, axes: Mapping[str, object]) -> Case:
    """The case that ``axes`` name, completed from what all cells share."""
    unknown = sorted(set(axes) - set(AXES))
    if unknown:
        raise InvalidValueError("axis", "the name of an axis", unknown[0], AXES)
    complete: dict[str, Any] = dict(axes)
    for axis in AXES:
        if axis in complete or axis in _DERIVED:
            continue
        values = sorted(cells[axis].unique().tolist(), key=str)
        if len(values) != 1:
            raise InvalidValueError(axis, "a value, since the run has several", None, values)
        complete[axis] = values[0]
    return Case.from_dict(complete)


def _predict_one(name: str, cells: pd.DataFrame, case: Case, alpha: float) -> Prediction:
    law = fit(name, cells)
    if isinstance(law, str):
        return Prediction(name, case, None, num_cells=len(cells), why=law)
    return apply_law(law, case, alpha)


def apply_law(law: Law, case: Case, alpha: float = ALPHA) -> Prediction:
    """Seconds by a law, with the interval that its held-out errors give."""
    features = dict(zip(_TERMS, _features(case), strict=True))
    seconds = sum(value * features[term] for term, value in law.coefficients.items())
    beyond = list(_beyond(law, case))
    reach = t_quantile(1 - alpha / 2, law.num_cells - len(law.coefficients)) * law.spread
    reach *= math.sqrt(1 + 1 / law.num_cells) * _stretch(law, case)
    return Prediction(
        law.implementation,
        case,
        seconds,
        seconds * math.exp(-reach),
        seconds * math.exp(reach),
        law.held_out_error,
        law.num_cells,
        tuple(beyond),
    )


def _beyond(law: Law, case: Case) -> Iterator[str]:
    axes = case.to_dict()
    for size in SIZES:
        low, high = law.ranges[size]
        if not low <= axes[size] <= high:
            yield f"{size} {axes[size]} (measured {low:g} to {high:g})"


def _stretch(law: Law, case: Case) -> float:
    """Errors grow with the distance from what was measured: once more per doubling of the work."""
    low, high = law.ranges["flops"]
    work = max(float(cost.flop_count(case)), 1.0)
    return 1 + max(0.0, math.log2(max(work / high, low / work)))


def fit(name: str, cells: pd.DataFrame) -> Law | str:
    """The law of one implementation, or why none holds.

    Args:
        cells: Its ``ok`` cells under one set of circumstances.
    """
    if len(cells) < _MIN_SPARE_CELLS + 1:
        return f"{len(cells)} measured cells (at least {_MIN_SPARE_CELLS + 1} needed)"
    cases = [Case.from_dict(_plain(line)) for line in cells[list(AXES)].to_dict("records")]
    features = np.array([_features(case) for case in cases], float)
    seconds = cells["median_s"].to_numpy(float)
    fits = [f for terms in _subsets() if (f := _fit_terms(features, seconds, terms)) is not None]
    if not fits:
        return "no cost law with coefficients of at least 0 fits the cells"
    coefficients, errors = min(fits, key=lambda f: float(np.sum(f[1] ** 2)))
    held_out = tuple(float(abs(e)) for e in errors)
    if math.expm1(float(np.median(held_out))) > _MAX_HELD_OUT_ERROR:
        wrong = math.expm1(float(np.median(held_out)))
        return f"the cost law misses left-out cells by {100 * wrong:.0f} % (at most 25 %)"
    freedom = len(cases) - len(coefficients)
    return Law(
        implementation=name,
        circumstances={axis: cells[axis].iloc[0] for axis in _CIRCUMSTANCES},
        coefficients=coefficients,
        held_out=held_out,
        spread=math.sqrt(float(np.sum(errors**2)) / freedom),
        num_cells=len(cases),
        ranges=_ranges(cells, features),
    )


def _plain(line: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): v.item() if isinstance(v, np.generic) else v for k, v in line.items()}


def _features(case: Case) -> tuple[float, ...]:
    pairs = float(cost.unmasked_pairs(case.config))
    return 1.0, float(cost.min_bytes(case)), pairs, float(cost.flop_count(case))


def _subsets() -> Iterable[tuple[int, ...]]:
    positions = range(len(_TERMS))
    return itertools.chain.from_iterable(
        itertools.combinations(positions, n) for n in range(1, len(_TERMS) + 1)
    )


def _fit_terms(
    features: _Array, seconds: _Array, terms: Sequence[int]
) -> tuple[dict[str, float], _Array] | None:
    """Coefficients and log errors of left-out cells; None where the terms don't fit."""
    if len(seconds) < len(terms) + _MIN_SPARE_CELLS:
        return None
    relative = features[:, list(terms)] / seconds[:, None]
    scale = np.linalg.norm(relative, axis=0)
    design = relative / scale
    if np.linalg.matrix_rank(design) < len(terms):
        return None
    inverse = np.linalg.pinv(design)
    solution = inverse @ np.ones(len(seconds))
    if np.any(solution < 0):
        return None
    leverage = np.clip(np.sum(design * inverse.T, axis=1), 0, 1 - 1e-9)
    left_out = 1 - (1 - design @ solution) / (1 - leverage)  # prediction over measured
    if np.any(left_out <= 0):
        return None
    coefficients = {_TERMS[t]: float(v) for t, v in zip(terms, solution / scale, strict=True)}
    return coefficients, np.log(left_out)


def _ranges(cells: pd.DataFrame, features: _Array) -> dict[str, tuple[float, float]]:
    sizes = {size: (float(cells[size].min()), float(cells[size].max())) for size in SIZES}
    flops = features[:, _TERMS.index("flops")]
    return sizes | {"flops": (float(flops.min()), float(flops.max()))}
