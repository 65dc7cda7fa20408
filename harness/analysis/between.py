"""Two runs against each other: joined on cases and implementations, judged as far as is honest.

Rounds of two runs don't pair: whatever differed between the two moments is inside the difference.
So the margin is wider than within a run, and wider still where one process stands for each run.
Times from different hardware are never judged; memory, errors and statuses still are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.cells import KEY, cells_of
from harness.analysis.compare import DEFAULT_MARGIN
from harness.analysis.mask_forms import changed_mask_forms
from harness.analysis.pairs import control_of_run, log_times
from harness.rows import Status
from harness.statistics.intervals import (
    ALPHA,
    UnpairedEffect,
    unpaired_effect,
    unpaired_interval,
    unpaired_p_value,
)
from harness.statistics.verdicts import Verdict, evidence_from, verdict_of

UNPAIRED_MARGIN = 0.05
SINGLE_PROCESS_MARGIN = 0.10
MEMORY_TOLERANCE = 0.02
ERROR_TOLERANCE = 1.5
MUST_MATCH = (
    ("hardware", "cpu", "model"),
    ("hardware", "cpu", "architecture"),
    ("hardware", "cpu", "cores_logical"),
    ("hardware", "cpu", "cores_usable"),
    ("hardware", "cpu", "vector_flags"),
    ("hardware", "gpus"),
)
INFORMATIVE = (
    ("hardware", "memory_bytes"),
    ("hardware", "cpu", "governor"),
    ("software", "python"),
    ("software", "packages"),
    ("software", "torch_cuda"),
    ("software", "torch_cpu_capability"),
    ("software", "kernel"),
    ("software", "libc"),
    ("settings", "variables"),
    ("settings", "float32_matmul_precision"),
    ("commit",),
)
_TEXT = pd.StringDtype(storage="python")
BETWEEN_TYPES: dict[str, Any] = {
    "case_key": _TEXT,
    "case_id": _TEXT,
    "implementation": _TEXT,
    "status_old": _TEXT,
    "status_new": _TEXT,
    "median_s_old": "Float64",
    "median_s_new": "Float64",
    "ratio": "Float64",
    "ratio_low": "Float64",
    "ratio_high": "Float64",
    "verdict": _TEXT,
    "why": _TEXT,
    "peak_alloc_bytes_old": "Int64",
    "peak_alloc_bytes_new": "Int64",
    "worst_scaled_u_old": "Float64",
    "worst_scaled_u_new": "Float64",
    "findings": _TEXT,
}


@dataclass(frozen=True)
class RunComparison:
    """What two runs say about each other.

    Args:
        table: One line per case and implementation that either run has, columns ``BETWEEN_TYPES``;
            ``findings`` joins ``slower``, ``incorrect``, ``more_memory``, ``less_exact``, ``new``
            and ``missing``.
        hardware: Differences that forbid to judge times, as ``field: old -> new``.
        circumstances: Differences that a reader must know.
        statement: What kind of comparison this is, in sentences.
        margin: Smallest difference in time that counts.
    """

    table: pd.DataFrame
    hardware: tuple[str, ...]
    circumstances: tuple[str, ...]
    statement: tuple[str, ...]
    margin: float


def compare_runs(
    old: pd.DataFrame,
    new: pd.DataFrame,
    old_environment: Mapping[str, Any],
    new_environment: Mapping[str, Any],
    margin: float = DEFAULT_MARGIN,
    alpha: float = ALPHA,
) -> RunComparison:
    """Compare two runs cell by cell; ratios are new over old."""
    hardware = differing(old_environment, new_environment, MUST_MATCH)
    wide = _margin(old, new, margin)
    effects = {} if hardware else _effects(old, new)
    old_cells, new_cells = cells_of(old), cells_of(new)
    cells = _joined(old_cells, new_cells)
    lines = [
        _line(cell, effects.get((cell["case_key"], cell["implementation"])), wide, alpha, hardware)
        for cell in cells.to_dict("records")
    ]
    table = pd.DataFrame(lines, columns=list(BETWEEN_TYPES)).astype(BETWEEN_TYPES)
    return RunComparison(
        table=table,
        hardware=hardware,
        circumstances=(
            *differing(old_environment, new_environment, INFORMATIVE),
            *changed_mask_forms(old_cells, new_cells),
        ),
        statement=_statement(old, new, list(effects.values()), hardware, wide),
        margin=wide,
    )


def differing(
    old: Mapping[str, Any], new: Mapping[str, Any], fields: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """``field: old -> new`` for every field of two environments that differs."""
    found: list[str] = []
    for path in fields:
        before, after = _lookup(old, path), _lookup(new, path)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            inner = [(*path, name) for name in sorted({*before, *after})]
            found += differing(old, new, inner)
        elif before != after:
            found.append(f"{'.'.join(path[1:] or path)}: {before} -> {after}")
    return tuple(found)


def _lookup(environment: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = environment
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _margin(old: pd.DataFrame, new: pd.DataFrame, wanted: float) -> float:
    processes = min(_processes(old), _processes(new))
    floor = UNPAIRED_MARGIN if processes > 1 else SINGLE_PROCESS_MARGIN
    return max(floor, *(control_of_run(rows).margin(wanted) for rows in (old, new)))


def _processes(rows: pd.DataFrame) -> int:
    measured = rows[rows["num_rounds"] > 0]
    counts = measured.groupby(KEY)["process"].nunique()
    return int(counts.min()) if len(counts) else 0


def _effects(old: pd.DataFrame, new: pd.DataFrame) -> dict[tuple[str, str], UnpairedEffect]:
    before, after = log_times(old), log_times(new)
    return {key: unpaired_effect(before[key], after[key]) for key in before if key in after}


def _joined(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    wanted = [*KEY, "case_id", "status", "median_s", "peak_alloc_bytes", "worst_scaled_u"]
    both = old[wanted].merge(
        new[wanted], on=[*KEY, "case_id"], how="outer", suffixes=("_old", "_new")
    )
    return both.sort_values(["case_id", "implementation"], ignore_index=True)


def _line(
    cell: Mapping[Any, Any],
    effect: UnpairedEffect | None,
    margin: float,
    alpha: float,
    hardware: tuple[str, ...],
) -> dict[str, Any]:
    line = {name: cell.get(name) for name in BETWEEN_TYPES if name in cell}
    for side in ("status_old", "status_new"):
        line[side] = "none" if pd.isna(line[side]) else line[side]
    line |= {"verdict": "none", "why": "different hardware" if hardware else ""}
    if effect is not None:
        shown = unpaired_interval(effect, alpha)
        evidence = evidence_from(effect.centre, lambda null: unpaired_p_value(effect, null), margin)
        line |= {
            "ratio": math.exp(effect.centre),
            "ratio_low": math.exp(shown.low),
            "ratio_high": math.exp(shown.high) if math.isfinite(shown.high) else None,
            "verdict": verdict_of(effect.centre, evidence, alpha).value,
        }
    return line | {"findings": "; ".join(_findings(line))}


def _findings(line: Mapping[str, Any]) -> list[str]:
    before, after = line["status_old"], line["status_new"]
    if "none" in (before, after):
        return ["new" if before == "none" else "missing"]
    found = []
    if after != before and after != Status.OK.value:
        found.append(str(after))
    if line["verdict"] == Verdict.SLOWER.value:
        found.append("slower")
    if line["verdict"] == Verdict.FASTER.value:
        found.append("faster")
    if _grew(line["peak_alloc_bytes_old"], line["peak_alloc_bytes_new"], 1 + MEMORY_TOLERANCE):
        found.append("more_memory")
    if _grew(line["worst_scaled_u_old"], line["worst_scaled_u_new"], ERROR_TOLERANCE):
        found.append("less_exact")
    return found


def _grew(before: Any, after: Any, factor: float) -> bool:
    return not pd.isna(before) and not pd.isna(after) and after > before * factor


def _statement(
    old: pd.DataFrame,
    new: pd.DataFrame,
    effects: Sequence[UnpairedEffect],
    hardware: tuple[str, ...],
    margin: float,
) -> tuple[str, ...]:
    if hardware:
        return ("Times are not judged: the runs come from different hardware.",)
    said = [
        "Unpaired: the runs were measured at different times, so whatever changed in between is in "
        f"the ratios. Differences under {100 * margin:.3g} % are not called."
    ]
    if min(_processes(old), _processes(new)) == 1:
        said.append("One process per case in a run: how much processes differ is unknown.")
    if effects:
        shift = math.expm1(float(np.median([effect.centre for effect in effects])))
        said.append(f"Median over all cells: {100 * shift:+.1f} % in time.")
    canary = _canary(new) - _canary(old)
    if math.isfinite(canary):
        said.append(
            f"Fixed work timed beside them: {100 * math.expm1(canary):+.1f} %; a shift here is the "
            "machine or its libraries, not an implementation."
        )
    return tuple(said)


def _canary(rows: pd.DataFrame) -> float:
    """Log of the median of the canary's times; the canary differs only by dtype and threads."""
    times = [time for canary in rows["canary_s"] for time in canary]
    return math.log(float(np.median(times))) if times else math.nan
