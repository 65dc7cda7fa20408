"""How much of a case's outputs is compared with the oracle: all of it, or a sample if it is long.

The oracle may take a few seconds of two cores for a case. Beyond that, forward outputs and dq are
compared on sampled rows of every head, and dk and dv, which sum over all rows, on all rows of
sampled key heads. Every row says which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.attention import Case, Scope
from harness.cost import projection_flop_count
from harness.numerics.expected import Selection

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
        rows: ``[n]`` positions of queries; None for all.
        slices: Pairs of batch entry and key/value head for dk and dv where rows are sampled.
    """

    rows: Tensor | None = None
    slices: tuple[tuple[int, int], ...] = ()

    @property
    def is_whole(self) -> bool:
        return self.rows is None


def certification_of(case: Case) -> Certification:
    """What the oracle can certify of a case in a few seconds."""
    c = case.config
    limit = MAX_ORACLE_FLOP * (_INDIVISIBLE_FACTOR if case.scope is Scope.LAYER else 1.0)
    if _oracle_flop(case) <= limit or c.seq_len <= SAMPLED_ROWS:
        return Certification()
    if not case.mode.has_gradients or case.scope is Scope.LAYER:
        return Certification(_sampled_rows(case))
    return Certification(_sampled_rows(case), _sampled_slices(case))


def _oracle_flop(case: Case) -> float:
    c = case.config
    products = _PRODUCTS_WITH_GRADIENTS if case.mode.has_gradients else _PRODUCTS_FORWARD
    flop = 2.0 * products * c.batch_size * c.num_heads * c.seq_len * c.kv_seq_len * c.head_dim
    if case.scope is Scope.LAYER:
        flop += products / _PRODUCTS_FORWARD * projection_flop_count(c)
    return flop


def _sampled_rows(case: Case) -> Tensor:
    """One row from each of equal strata, drawn from the case's seed, so that over cases every place
    in a kernel's tile gets its turn; first and last always.
    """
    length = case.config.seq_len
    generator = torch.Generator().manual_seed(case.seed)
    edges = torch.linspace(0, length, SAMPLED_ROWS - 1, dtype=torch.float64)
    drawn = torch.rand(SAMPLED_ROWS - 2, generator=generator, dtype=torch.float64)
    inside = (edges[:-1] + drawn * edges.diff()).long()
    ends = torch.tensor([0, length - 1])
    rows: Tensor = torch.unique(torch.cat((inside, ends)).clamp(0, length - 1))
    return rows


def _sampled_slices(case: Case) -> tuple[tuple[int, int], ...]:
    """As many key heads as can be certified whole, evenly spread; none if one is too much."""
    c = case.config
    total = c.batch_size * c.num_kv_heads
    of_one = _oracle_flop(case) / total
    affordable = int(MAX_ORACLE_FLOP / 2 // of_one)
    if not affordable:
        affordable = int(of_one <= MAX_ORACLE_FLOP * _INDIVISIBLE_FACTOR)
    # The last head first: a tail that goes wrong is there.
    chosen = np.unique(np.linspace(total - 1, 0, min(affordable, total)).round().astype(int))
    return tuple((int(i) // c.num_kv_heads, int(i) % c.num_kv_heads) for i in chosen)


def certified_in_words(case: Case, selection: Selection | None) -> str:
    """``all rows``, ``128 of 32768 rows`` or ``3 of 8 key heads``."""
    if selection is None:
        return "all rows"
    c = case.config
    total = c.seq_len if selection.rows is not None else c.batch_size * c.num_kv_heads
    number, _, what = str(selection).partition(" ")
    return f"{number} of {total} {what}"
