"""A run in pytest-benchmark's JSON, so that ``pytest-benchmark compare`` reads it.

One benchmark per cell, in the group of its case; a round is a round, its time the burst's minimum.
Memory, error and verdict travel in ``extra_info``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.analysis.pairs import log_times
from harness.columns import AXES
from harness.report import numbers
from harness.report.content import Content

_VERSION = "5.0.0"  # of pytest-benchmark, whose layout this is
_EXTRA = (
    "peak_alloc_bytes",
    "peak_rss_bytes",
    "worst_max_abs",
    "worst_scaled_u",
    "worst_bound_share",
    "first_call_s",
    "kernel",
    "flags",
)


def benchmark_json(content: Content) -> str:
    """The whole run as one file's text; only cells that are ``ok``."""
    times = {
        key: np.exp(np.concatenate(processes)) for key, processes in log_times(content.rows).items()
    }
    cells = {(c["case_key"], c["implementation"]): c for c in content.cells.to_dict("records")}
    verdicts = {
        (c["case_key"], c["implementation"]): c["verdict"]
        for c in content.comparisons.to_dict("records")
    }
    benchmarks = [
        _benchmark(cells[key], seconds, verdicts.get(key, "reference"))
        for key, seconds in times.items()
    ]
    document = {
        "machine_info": _machine_info(content.environment),
        "commit_info": {"id": str(content.environment.get("commit")), "project": "mha-bench"},
        "benchmarks": benchmarks,
        "datetime": min(content.rows["started_at"], default=""),
        "version": _VERSION,
    }
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _benchmark(cell: Mapping[Any, Any], seconds: Any, verdict: str) -> dict[str, Any]:
    name = f"{cell['implementation']}[{cell['case_id']}]"
    params = {axis: _plain(cell[axis]) for axis in AXES}
    extra = {field: _plain(cell[field]) for field in _EXTRA}
    return {
        "group": cell["case_id"],
        "name": name,
        "fullname": f"mha-bench::{name}",
        "params": params | {"implementation": cell["implementation"]},
        "param": cell["case_id"],
        "extra_info": extra | {"verdict": verdict, "repro": cell["repro"]},
        "options": {"timer": "perf_counter", "min_rounds": len(seconds), "disable_gc": True},
        "stats": _stats(np.sort(seconds)),
    }


def _plain(value: Any) -> Any:
    if numbers.is_absent(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _stats(ordered: Any) -> dict[str, Any]:
    """The figures that pytest-benchmark prints, by its definitions."""
    n = len(ordered)
    mean = float(np.mean(ordered))
    stddev = float(np.std(ordered, ddof=1)) if n > 1 else 0.0
    q1, median, q3 = (float(q) for q in np.quantile(ordered, (0.25, 0.5, 0.75)))
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    inside = ordered[(ordered >= low) & (ordered <= high)]
    far = int(np.sum(np.abs(ordered - mean) > stddev))
    return {
        "min": float(ordered[0]),
        "max": float(ordered[-1]),
        "mean": mean,
        "stddev": stddev,
        "rounds": n,
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": n - len(inside),
        "stddev_outliers": far,
        "outliers": f"{far};{n - len(inside)}",
        "ld15iqr": float(inside[0]),
        "hd15iqr": float(inside[-1]),
        "ops": 1 / mean,
        "total": float(np.sum(ordered)),
        "iterations": 1,
        "data": _rounded(ordered),
    }


def _rounded(ordered: Any) -> Sequence[float]:
    return [float(f"{seconds:.9g}") for seconds in ordered]


def _machine_info(environment: Mapping[str, Any]) -> dict[str, Any]:
    hardware, software = environment.get("hardware", {}), environment.get("software", {})
    cpu = hardware.get("cpu", {}) if isinstance(hardware.get("cpu"), Mapping) else {}
    return {
        "node": "",
        "processor": str(cpu.get("architecture", "")),
        "machine": str(cpu.get("architecture", "")),
        "python_version": str(software.get("python", "")),
        "python_implementation": "CPython",
        "python_implementation_version": str(software.get("python", "")),
        "python_build": ["", ""],
        "python_compiler": "",
        "release": str(software.get("kernel", "")),
        "system": str(software.get("system", "")),
        "cpu": {"brand_raw": str(cpu.get("model", "")), "count": cpu.get("cores_logical")},
    }
