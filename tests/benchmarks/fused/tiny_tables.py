"""Calls so small that only their overhead counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from tests.benchmarks.fused.engine import Place
from tests.benchmarks.fused.plans import (
    FUSED,
    SDPA,
    Aim,
    Choice,
    Recipe,
    Table,
    attention_case,
    calls_of,
)

_LENGTHS = [1, 2, 4, 8, 16]


def _recipes(choice: Choice) -> Iterator[Recipe]:
    for dtype, length, threads in product(choice.dtypes, _LENGTHS, choice.threads):
        case = attention_case(8, length, 64, dtype, threads)
        rivals = choice.rivals(dtype, with_three_products=False)
        place = Place("tiny", dtype, f"H8 S{length} D64", threads)
        yield Recipe(place, partial(calls_of, case, rivals))


def _aims(group: str) -> Sequence[Aim]:
    return (Aim(SDPA, FUSED, least=1.0),)


TINY = Table("tiny", "Tiny calls", _recipes, _aims)
