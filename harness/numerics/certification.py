"""How much of a case's outputs is compared with the oracle: all of it, or a sample if it is long.

The oracle may take a few seconds of two cores for a case. Beyond that, forward outputs and dq are
compared on sampled rows of every head; dk, dv and the gradients of a layer's weights, which sum
over all rows, on all rows of sampled key heads; and the gradients of a layer's source, which sum
over all heads as well, on a sampled batch entry. Where that is too much, too, these are compared in
a call of their own, whose gradient of the output is zero but in the sampled rows: the backward pass
is linear in it, and sums over those rows alone. Every row says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.attention import Case, Mode, Scope
from harness.cost import projection_flop_count
from harness.numerics.expected import SLICE, Selection

# Floating-point operations of the oracle's float64 products, 1.5 to 2 s on two cores; the
# magnitudes of the bound take about as long again. The gradients of a layer cannot be sampled, nor
# those of one key head: these may take longer.
MAX_ORACLE_FLOP = 1.5e11
_INDIVISIBLE_FACTOR = 2.1
SAMPLED_ROWS = 128
_PRODUCTS_FORWARD, _PRODUCTS_WITH_GRADIENTS = 2, 6


@dataclass(frozen=True)
class Certification:
    """What is compared.

    Args:
        rows: ``[n]`` positions of queries; None for all, and then nothing else is sampled.
        slices: Pairs of batch entry and key/value head, for dk and dv.
        kv_heads: Key/value heads, for the gradients of a layer's weights.
        batch: Batch entry, for the gradients of a layer's source; None for none.
        keys: ``[m]`` positions at which these are compared when ``rows`` alone are fed back; None
            where that is not done.
    """

    rows: Tensor | None = None
    slices: tuple[tuple[int, int], ...] = ()
    kv_heads: tuple[int, ...] = ()
    batch: int | None = None
    keys: Tensor | None = None


def certification_of(case: Case) -> Certification:
    """What the oracle can certify of a case in a few seconds."""
    c = case.config
    limit = MAX_ORACLE_FLOP * (_INDIVISIBLE_FACTOR if case.scope is Scope.LAYER else 1.0)
    if _oracle_flop(case) <= limit or c.seq_len <= SAMPLED_ROWS:
        return Certification()
    rows = _sampled(c.seq_len, case.seed)
    if not case.mode.has_gradients:
        return Certification(rows)
    if case.scope is Scope.LAYER:
        heads = _spread(c.num_kv_heads, _oracle_flop(case))
        if c.batch_size > 1 and _oracle_flop(case) / c.batch_size <= limit:
            return Certification(rows, kv_heads=heads, batch=case.seed % c.batch_size)
        # In mode backward a call of its own would hold a graph beside the one that is timed.
        if case.mode is Mode.BACKWARD:
            return Certification(rows, kv_heads=heads)
        return Certification(rows, kv_heads=heads, keys=_keys_of_sources(case, rows))
    flat = _spread(c.batch_size * c.num_kv_heads, _oracle_flop(case))
    return Certification(rows, tuple(divmod(i, c.num_kv_heads) for i in flat))


def too_large(case: Case, name: str) -> str:
    """Why an output can't be certified even in part, in words for the row."""
    c = case.config
    if name in ("dx", "dx_kv"):
        entry = "of the only batch entry" if c.batch_size == 1 else "of one batch entry"
        sums = f"one element sums over all {c.num_heads} heads and all {c.seq_len} rows {entry}"
    else:
        sums = f"one element sums over all {c.seq_len} rows of a head"
    return f"too large for the oracle: {sums}"


def _oracle_flop(case: Case) -> float:
    c = case.config
    products = _PRODUCTS_WITH_GRADIENTS if case.mode.has_gradients else _PRODUCTS_FORWARD
    flop = 2.0 * products * c.batch_size * c.num_heads * c.seq_len * c.kv_seq_len * c.head_dim
    if case.scope is Scope.LAYER:
        flop += products / _PRODUCTS_FORWARD * projection_flop_count(c)
    return flop


def _keys_of_sources(case: Case, rows: Tensor) -> Tensor:
    c = case.config
    return rows if c.kv_seq_len == c.seq_len else _sampled(c.kv_seq_len, case.seed)


def _sampled(length: int, seed: int) -> Tensor:
    """One row from each of equal strata, drawn from the case's seed, so that over cases every place
    in a kernel's tile gets its turn; first and last always.
    """
    generator = torch.Generator().manual_seed(seed)
    edges = torch.linspace(0, length, SAMPLED_ROWS - 1, dtype=torch.float64)
    drawn = torch.rand(SAMPLED_ROWS - 2, generator=generator, dtype=torch.float64)
    inside = (edges[:-1] + drawn * edges.diff()).long()
    ends = torch.tensor([0, length - 1])
    rows: Tensor = torch.unique(torch.cat((inside, ends)).clamp(0, length - 1))
    return rows


def _spread(total: int, flop: float) -> tuple[int, ...]:
    """As many of ``total`` equal parts as can be certified whole, evenly spread; none if one is too
    much.
    """
    of_one = flop / total
    affordable = int(MAX_ORACLE_FLOP / 2 // of_one)
    if not affordable:
        affordable = int(of_one <= MAX_ORACLE_FLOP * _INDIVISIBLE_FACTOR)
    # The last head first: a tail that goes wrong is there.
    chosen = np.unique(np.linspace(total - 1, 0, min(affordable, total)).round().astype(int))
    return tuple(int(i) for i in chosen)


def row_selection(case: Case, rows: Tensor | None) -> Selection | None:
    """Rows of an output that has an axis ``query``; None for all."""
    if rows is None:
        return None
    return Selection("query", rows, f"{len(rows)} of {case.config.seq_len} rows")


def slice_selection(case: Case, slices: Sequence[tuple[int, int]]) -> Selection:
    """Key heads of dk and dv."""
    c = case.config
    total = c.batch_size * c.num_kv_heads
    return Selection(
        SLICE,
        torch.tensor([batch * c.num_kv_heads + head for batch, head in slices]),
        f"{len(slices)} of {total} key heads",
        (total, c.kv_seq_len, c.head_dim),
        c.num_kv_heads,
    )
