"""Forward and training passes, views of a packed product, and the path of older processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch

from harness.attention import Case, Mode
from harness.inputs.sets import make_inputs
from harness.interface import AttentionInputs, Implementation
from implementations.fused import Fused
from implementations.sdpa import Sdpa
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

# (num_heads, seq_len, head_dim)
SHAPES = [
    (8, 128, 96),
    (8, 512, 96),
    (8, 2048, 96),
    (16, 2048, 64),
    (32, 1024, 128),
    (8, 8192, 64),
]
_QUICK = SHAPES[:2]


def _cells(choice: Choice, table: str, dtype: str, **circumstances: str) -> Iterator[Any]:
    """Places and cases of all shapes, full and causal."""
    shapes = _QUICK if choice.is_quick else SHAPES
    for (heads, length, dim), mask, threads in product(shapes, ("none", "causal"), choice.threads):
        label = f"H{heads} S{length} D{dim} {'full' if mask == 'none' else mask}"
        case = attention_case(heads, length, dim, dtype, threads, mask, **circumstances)
        yield Place(table, dtype, label, threads), case


def _forward_recipes(choice: Choice) -> Iterator[Recipe]:
    for dtype in choice.dtypes:
        for place, case in _cells(choice, "forward", dtype):
            yield Recipe(place, partial(calls_of, case, choice.rivals(dtype)))


def _forward_aims(group: str) -> Sequence[Aim]:
    if group == "bfloat16":
        return (Aim(SDPA, FUSED, mean=2.1, least=1.5),)
    return (Aim(SDPA, FUSED, mean=1.6, least=1.05), Aim(SDPA, THREE_PRODUCTS, mean=2.4))


def _training_recipes(choice: Choice) -> Iterator[Recipe]:
    for dtype in choice.dtypes:
        for place, case in _cells(choice, "training", dtype, mode=Mode.FORWARD_BACKWARD):
            # the backward pass of three products is that of fused
            rivals = choice.rivals(dtype, with_three_products=False)
            yield Recipe(place, partial(calls_of, case, rivals))


def _training_aims(group: str) -> Sequence[Aim]:
    return (Aim(SDPA, FUSED, mean=1.3 if group == "float32" else None),)


def _strided_recipes(choice: Choice) -> Iterator[Recipe]:
    for dtype in choice.dtypes:
        ours = {name: rival for name, rival in choice.rivals(dtype).items() if name != SDPA}
        for (place, case), name in product(_cells(choice, "strided", dtype), ours):
            at = replace(place, group=f"{dtype} {name}")
            yield Recipe(at, partial(_packed_and_not, case, ours[name]))


def _packed_and_not(case: Case, rival: Implementation) -> Mapping[str, Runs]:
    inputs = [make_inputs(case, index) for index in range(2)]
    packed = [packed_views(x) for x in inputs if isinstance(x, AttentionInputs)]
    return {
        "contiguous": tuple(rival.prepare(case, x) for x in inputs),
        "strided": tuple(rival.prepare(case, x) for x in packed),
    }


def packed_views(inputs: AttentionInputs) -> AttentionInputs:
    """The same numbers as views of ``[B, L, 3, H, D]``, what one projection of all three gives."""
    packed = torch.stack((inputs.q, inputs.k, inputs.v), dim=1).permute(0, 3, 1, 2, 4).contiguous()
    return AttentionInputs(*packed.permute(2, 0, 3, 1, 4))


def _strided_aims(group: str) -> Sequence[Aim]:
    within_5_percent = 1 / 1.05
    return (Aim("contiguous", "strided", least=within_5_percent),)


def _avx2_recipes(table: str, choice: Choice) -> Iterator[Recipe]:
    for place, case in _cells(choice, table, "float32"):
        yield Recipe(place, partial(calls_of, case, {SDPA: Sdpa(), FUSED: Fused(path="avx2")}))


def _avx2_aims(group: str) -> Sequence[Aim]:
    return (Aim(SDPA, FUSED, mean=1.3),)


ATEN_AT_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2"}
# ATEN_CPU_CAPABILITY leaves MKL, which computes SDPA's products, at AVX-512.
ALL_AT_AVX2 = ATEN_AT_AVX2 | {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}

FORWARD = Table("forward", "Forward", _forward_recipes, _forward_aims)
TRAINING = Table("training", "Forward and backward", _training_recipes, _training_aims)
STRIDED = Table("strided", "Views of a packed qkv", _strided_recipes, _strided_aims)
AVX2_ATEN = Table(
    "avx2_aten",
    "The AVX2 path, SDPA under ATEN_CPU_CAPABILITY=avx2 (its products still on AVX-512)",
    partial(_avx2_recipes, "avx2_aten"),
    _avx2_aims,
    ATEN_AT_AVX2,
)
AVX2_ALL = Table(
    "avx2_all",
    "The AVX2 path, SDPA and its products held to AVX2",
    partial(_avx2_recipes, "avx2_all"),
    _avx2_aims,
    ALL_AT_AVX2,
)
