"""How time, memory and error move along one axis, everything else held fixed.

Comparisons are balanced: a value is compared with the smallest one over the cells that both have
with all other axes equal, and says how many those are. Cells of different cases share no rounds, so
the intervals are those of unpaired processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.cells import cells_of
from harness.analysis.lines import lines_along
from harness.analysis.pairs import log_times
from harness.statistics.dependence import Array
from harness.statistics.intervals import ALPHA, UnpairedEffect, unpaired_effect
from harness.statistics.quantiles import normal_quantile

_TEXT = pd.StringDtype(storage="python")
SCALING_TYPES: dict[str, Any] = {
    "implementation": _TEXT,
    "axis": _TEXT,
    "value": "Float64",
    "reference": "Float64",
    "num_matched": "Int64",
    "time_ratio": "Float64",
    "time_low": "Float64",
    "time_high": "Float64",
    "memory_ratio": "Float64",
    "error_ratio": "Float64",
}


def scaling(rows: pd.DataFrame, axis: str = "num_heads", alpha: float = ALPHA) -> pd.DataFrame:
    """Geometric means over matched cells of each value of ``axis`` against its smallest one."""
    cells = cells_of(rows)
    by_key = {(c["case_key"], c["implementation"]): c for c in cells.to_dict("records")}
    times = log_times(rows)
    matched: dict[tuple[str, float, float], list[tuple[str, str]]] = {}
    for line in lines_along(cells, axis):
        smallest, first_key = line.points[0]
        for value, key in line.points[1:]:
            for name in sorted(cells["implementation"].unique()):
                if (first_key, name) in times and (key, name) in times:
                    matched.setdefault((name, value, smallest), []).append((first_key, key))
    lines = [
        {"implementation": name, "axis": axis, "value": value, "reference": smallest}
        | _ratios(name, keys, by_key, times, alpha)
        for (name, value, smallest), keys in sorted(matched.items())
    ]
    return pd.DataFrame(lines, columns=list(SCALING_TYPES)).astype(SCALING_TYPES)


def _ratios(
    name: str,
    keys: Sequence[tuple[str, str]],
    cells: Mapping[tuple[str, str], Mapping[Any, Any]],
    times: Mapping[tuple[str, str], list[Array]],
    alpha: float,
) -> dict[str, Any]:
    effects = [unpaired_effect(times[(first, name)], times[(key, name)]) for first, key in keys]
    centre = float(np.mean([effect.centre for effect in effects]))
    reach = normal_quantile(1 - alpha / 2) * _se_of_mean(effects)
    return {
        "num_matched": len(keys),
        "time_ratio": math.exp(centre),
        "time_low": math.exp(centre - reach),
        "time_high": math.exp(centre + reach) if math.isfinite(reach) else None,
        "memory_ratio": _mean_ratio(name, keys, cells, "peak_alloc_bytes"),
        "error_ratio": _mean_ratio(name, keys, cells, "worst_scaled_u"),
    }


def _se_of_mean(effects: Sequence[UnpairedEffect]) -> float:
    """By the effects' own errors; few processes make them too small, so at least their spread."""
    own = math.hypot(*(effect.se for effect in effects)) / len(effects)
    if len(effects) < 2:
        return own
    spread = float(np.std([effect.centre for effect in effects], ddof=1))
    return max(own, spread / math.sqrt(len(effects)))


def _mean_ratio(
    name: str,
    keys: Sequence[tuple[str, str]],
    cells: Mapping[tuple[str, str], Mapping[Any, Any]],
    column: str,
) -> float | None:
    logs = []
    for first, key in keys:
        before, after = cells[(first, name)][column], cells[(key, name)][column]
        if pd.isna(before) or pd.isna(after) or before <= 0 or after <= 0:
            return None
        logs.append(math.log(after / before))
    return math.exp(float(np.mean(logs)))
