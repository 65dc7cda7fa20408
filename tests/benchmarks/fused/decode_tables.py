"""Few queries on a long cache: judged by SDPA, and by how fast the same bytes can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import torch

from harness.attention import Case
from harness.interface import Implementation, torch_dtype
from tests.benchmarks.fused.engine import Place, Runs
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

READ = "read"
_KEYS = 8192
_HEADS = [(8, 64), (32, 128)]  # (num_heads, head_dim)
_QUERIES = [1, 4, 16]
_SHARE = "share of the measured bandwidth, {}"
_ROW = 1024  # numbers in a row of the matrix that is read


def _recipes(choice: Choice) -> Iterator[Recipe]:
    heads = _HEADS[:1] if choice.is_quick else _HEADS
    for dtype, queries in product(choice.dtypes, _QUERIES):
        for (num_heads, dim), threads in product(heads, choice.threads):
            case = attention_case(num_heads, queries, dim, dtype, threads, kv_seq_len=_KEYS)
            group = f"{dtype}, {queries} {'query' if queries == 1 else 'queries'}"
            label = f"H{num_heads} L{queries} S{_KEYS} D{dim}"
            rivals = choice.rivals(dtype, with_three_products=False)
            yield Recipe(Place("decode", group, label, threads), partial(_calls, case, rivals))


def _calls(case: Case, rivals: Mapping[str, Implementation]) -> Mapping[str, Runs]:
    return {**calls_of(case, rivals), READ: (_read(case),) * 2}


def _read(case: Case) -> Callable[[], torch.Tensor]:
    """A matrix-vector product in float32 that reads as many bytes as keys and values take."""
    c = case.config
    num_bytes = 2 * c.num_kv_heads * c.kv_seq_len * c.head_dim * torch_dtype(c.dtype).itemsize
    matrix, vector = torch.ones(num_bytes // 4 // _ROW, _ROW), torch.ones(_ROW)
    return lambda: torch.mv(matrix, vector)


def _aims(group: str) -> Sequence[Aim]:
    is_one = group.endswith("1 query")
    return (
        Aim(SDPA, FUSED, least=1.3 if is_one else None),
        Aim(READ, FUSED, least=0.75 if is_one else None, words=_SHARE.format(FUSED)),
        # What it leaves is all that a kernel can gain on SDPA.
        Aim(READ, SDPA, words=_SHARE.format(SDPA)),
    )


DECODE = Table("decode", "Few queries on 8192 keys", _recipes, _aims)
