"""Masks, and whether the cost of a window follows the window."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np

from harness.attention import Case
from harness.cost import unmasked_pairs
from harness.inputs.sets import make_inputs
from implementations.fused import Fused
from tests.benchmarks.fused.cells import Array, Cell, Figure
from tests.benchmarks.fused.engine import Place, Runs
from tests.benchmarks.fused.plans import (
    FUSED,
    SDPA,
    THREE_PRODUCTS,
    Aim,
    Choice,
    Recipe,
    Table,
    attention_case,
    calls_of,
)

_MASKS = {
    "padding": "padding:0.25",
    "window": "causal+window:256",
    "boolean": "keep:random",
    "bias": "bias:random",
}
_SHAPES = [(8, 512, 96), (8, 2048, 96), (16, 2048, 64), (32, 1024, 128)]


def _recipes(choice: Choice) -> Iterator[Recipe]:
    shapes = _SHAPES[:1] if choice.is_quick else _SHAPES
    for dtype, kind in product(choice.dtypes, _MASKS):
        for (heads, length, dim), threads in product(shapes, choice.threads):
            case = attention_case(heads, length, dim, dtype, threads, _MASKS[kind])
            place = Place("masks", f"{dtype} {kind}", f"H{heads} S{length} D{dim}", threads)
            yield Recipe(place, partial(calls_of, case, choice.rivals(dtype)))


def _aims(group: str) -> Sequence[Aim]:
    return (Aim(SDPA, FUSED, mean=1.3), Aim(SDPA, THREE_PRODUCTS, mean=1.3))


_WINDOW, _LENGTH = 256, 4096
_LENGTHS, _WINDOWS = (2048, 4096, 8192), (128, 256, 512, 1024)
# The issue asks for growth with the window, not with the square of the length, and names no
# figure. Per pair that attends, the longest may cost a quarter more; the square would give 0.25.
_LEAST_BY_LENGTH = 0.8


def _growth_recipes(choice: Choice) -> Iterator[Recipe]:
    for dtype, threads in product(choice.dtypes, choice.threads):
        by_length = {f"S{n}": _window_case(dtype, threads, n, _WINDOW) for n in _LENGTHS}
        by_window = {f"W{n}": _window_case(dtype, threads, _LENGTH, n) for n in _WINDOWS}
        for label, cases in (
            (f"H8 D64, window {_WINDOW}, S {_LENGTHS[0]} to {_LENGTHS[-1]}", by_length),
            (f"H8 D64, S {_LENGTH}, window {_WINDOWS[0]} to {_WINDOWS[-1]}", by_window),
        ):
            group = f"{dtype}, length" if cases is by_length else f"{dtype}, window"
            pairs = {name: float(unmasked_pairs(case.config)) for name, case in cases.items()}
            yield Recipe(Place("window", group, label, threads), partial(_alone, cases), pairs)


def _window_case(dtype: str, threads: int, length: int, window: int) -> Case:
    return attention_case(8, length, 64, dtype, threads, f"causal+window:{window}")


def _alone(cases: Mapping[str, Case]) -> Mapping[str, Runs]:
    return {name: (Fused().prepare(case, make_inputs(case)),) for name, case in cases.items()}


def _speed_kept(short: str, long: str) -> Figure:
    """Pairs per second of the long one by that of the short one: 1 where time grows with pairs."""

    def logs(cell: Cell, times: Mapping[str, Array]) -> Array:
        growth = math.log(cell.scale[long] / cell.scale[short])
        found: Array = growth + np.log(times[short]) - np.log(times[long])
        return found

    return logs


def _growth_aims(group: str) -> Sequence[Aim]:
    if group.endswith("length"):
        short, long = f"S{_LENGTHS[0]}", f"S{_LENGTHS[-1]}"
        words, least = "speed per pair kept from the shortest to the longest", _LEAST_BY_LENGTH
        return (Aim(short, long, least=least, figure=_speed_kept(short, long), words=words),)
    narrow, wide = f"W{_WINDOWS[0]}", f"W{_WINDOWS[-1]}"
    words = "speed per pair of the narrowest by the widest"
    kept = _speed_kept(wide, narrow)
    # Without a target: blocks at a window's edges are computed whole, which costs narrow ones more.
    return (Aim(narrow, wide, figure=kept, words=words),)


MASKS = Table("masks", "Masks", _recipes, _aims)
WINDOW = Table("window", "Growth of a window's cost", _growth_recipes, _growth_aims)
