"""Lines through a sweep: cases that differ along one axis only, in its order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from harness.analysis.cells import varying_axes
from harness.columns import AXES

# What moves along with an axis, and so does not split a line.
_FOLLOWERS: dict[str, tuple[str, ...]] = {
    "seq_len": ("kv_seq_len",),
    "num_heads": ("num_kv_heads", "head_dim", "scale"),
    "hidden_size": ("head_dim", "scale"),
}


@dataclass(frozen=True)
class Line:
    """Cases along ``axis``.

    Args:
        fixed: Values of the axes that vary elsewhere in the sweep; what names the line.
        points: Value of the axis and key of the case, in order.
    """

    axis: str
    fixed: Mapping[str, Any]
    points: tuple[tuple[float, str], ...]


def lines_along(cells: pd.DataFrame, axis: str = "seq_len") -> Iterator[Line]:
    """Every line along ``axis`` with two or more cases.

    A follower that keeps its own value while the axis moves (keys of a fixed length, say) splits
    lines like any other axis.
    """
    cases = cells.drop_duplicates("case_key")
    followers = [name for name in _FOLLOWERS.get(axis, ()) if _follows(cases, axis, name)]
    others = [name for name in AXES if name not in (axis, *followers)]
    naming = [name for name in varying_axes(cells) if name in others]
    for _, group in cases.groupby(others, sort=True):
        ordered = group.sort_values(axis)
        if ordered[axis].nunique() >= 2 and ordered[axis].is_unique:
            first = ordered.iloc[0]
            points = zip(ordered[axis].astype(float), ordered["case_key"], strict=True)
            yield Line(axis, {name: _plain(first[name]) for name in naming}, tuple(points))


def _plain(value: Any) -> Any:
    """A Python number for numpy's, so that a line reads and stores like a case."""
    return value.item() if isinstance(value, np.generic) else value


def _follows(cases: pd.DataFrame, axis: str, follower: str) -> bool:
    """Whether the follower is what the axis makes it in every case."""
    expected = {
        "kv_seq_len": cases["seq_len"],
        "num_kv_heads": cases["num_heads"],
        "head_dim": cases["hidden_size"] // cases["num_heads"],
        "scale": cases["head_dim"].astype(float) ** -0.5,
    }[follower]
    difference = cases[follower].astype(float) - expected.astype(float)
    return bool((difference.abs() < 1e-9).all())
