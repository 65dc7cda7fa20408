"""One pass over the blocks of an attention problem: exact results and rounding magnitudes.

Shapes: B batch_size, H num_heads, G num_kv_heads, n wanted rows, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from harness.attention import DType
from harness.interface import Contract
from harness.numerics.gradient_rounding import gradient_parts
from harness.numerics.problem import Problem
from harness.numerics.reference import Exact, empty_exact, fill_exact
from harness.numerics.rounding import (
    OperandErrors,
    Parts,
    RowTerms,
    Units,
    bound_of,
    eta,
    forward_parts,
    gradient_coefficient,
    units,
)
from harness.numerics.score_blocks import Block, blocks


@dataclass(frozen=True)
class Magnitudes:
    """``Parts`` of the bound of each result, stacked: ``[3, *shape of the result]``."""

    o: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


@dataclass(frozen=True)
class AttentionPass:
    """Exact results of an attention problem, and what bounds the errors of each.

    Args:
        rows: Terms of the bound, ``[B, H, n]``.
    """

    exact: Exact
    magnitudes: Magnitudes
    rows: RowTerms
    head_dim: int
    seq_len: int
    units: Units

    def output_coefficient(self, contract: Contract) -> Tensor:
        """``[B, H, n, 1]``."""
        return eta(self.rows, self.units, contract, self.head_dim)[..., None]

    def dq_coefficient(self, contract: Contract) -> Tensor:
        """``[B, H, n, 1]``."""
        return gradient_coefficient(self.rows, self.units, contract, self.head_dim)[..., None]

    def key_coefficient(self, contract: Contract) -> Tensor:
        """``[B, G, 1, 1]`` for dk and dv: the largest of the rows that they sum over."""
        of_rows = self.dq_coefficient(contract).nan_to_num()
        batch_size, num_heads, num_rows, _ = of_rows.shape
        num_kv_heads = self.magnitudes.dk.shape[2]
        by_group = of_rows.reshape(batch_size, num_kv_heads, num_heads // num_kv_heads * num_rows)
        summed = (self.seq_len**0.5 + 4) * self.units.accumulate
        largest = by_group.amax(dim=-1) if by_group.shape[-1] else by_group.sum(dim=-1)
        coefficient: Tensor = largest[..., None, None] + summed
        return coefficient

    def bound(self, name: str, contract: Contract) -> Tensor:
        """Largest allowed error of ``o``, ``dq``, ``dk`` or ``dv``, element by element."""
        parts = Parts(*getattr(self.magnitudes, name))
        terms: Tensor | int = self.rows.attended[..., None]
        if name == "o":
            return bound_of(parts, self.output_coefficient(contract), terms, self.units)
        if name == "dq":
            coefficient = self.dq_coefficient(contract)
        else:
            coefficient, terms = self.key_coefficient(contract), self.seq_len
        group_size = self.rows.attended.shape[1] // self.magnitudes.dk.shape[2]
        parts = replace(parts, underflow=parts.underflow + 3 + group_size)
        return bound_of(parts, coefficient, terms, self.units)


def wide_dtype(dtype: DType) -> torch.dtype:
    """Magnitudes need few digits: float32, except for float64 itself with its wider range."""
    return torch.float64 if dtype is DType.FLOAT64 else torch.float32


def run_attention_pass(
    problem: Problem,
    dtype: DType,
    rows: Tensor | None = None,
    d_output: Tensor | None = None,
    errors: OperandErrors | None = None,
) -> AttentionPass:
    """Exact results and magnitudes of the wanted rows; gradients if ``d_output`` is given.

    Args:
        dtype: Of the implementation that will be judged.
        rows: ``[n]`` positions of queries; None for all, which gradients need.
        d_output: ``[B, H, L, D]``.
        errors: What the operands' own rounding adds; None where they are exact.
    """
    c = problem.config
    num_rows = c.seq_len if rows is None else len(rows)
    exact = empty_exact(problem, num_rows, d_output is not None)
    wide = wide_dtype(dtype)
    magnitudes = Magnitudes(
        *(
            torch.zeros((3, *(r.shape if r is not None else (0, 0, 0, 0))), dtype=wide)
            for r in (exact.o, exact.dq, exact.dk, exact.dv)
        )
    )
    terms = RowTerms(*(torch.zeros(exact.lse.shape, dtype=wide) for _ in fields(RowTerms)))
    done = AttentionPass(exact, magnitudes, terms, c.head_dim, c.seq_len, units(dtype))
    for block in blocks(problem, rows):
        _enter(done, block, c.scale, d_output, errors, wide)
    return done


def _enter(
    done: AttentionPass,
    block: Block,
    scale: float,
    d_output: Tensor | None,
    errors: OperandErrors | None,
    wide: torch.dtype,
) -> None:
    at = (block.batch, block.head, block.span)
    parts, rows = forward_parts(block, scale, wide, errors)
    _store(done.magnitudes.o, at, parts)
    for f in fields(RowTerms):
        getattr(done.rows, f.name)[at] = getattr(rows, f.name)
    of_block = None
    if d_output is not None:
        of_block = d_output[block.batch, block.head, block.rows].double()
    inner = fill_exact(done.exact, block, scale, of_block)
    if inner is not None and of_block is not None:
        shares = gradient_parts(
            block, inner, parts.scaled, of_block, done.exact.o[at], scale, done.units, errors
        )
        kv = (block.batch, block.kv_head)
        _store(done.magnitudes.dq, at, shares.dq)
        _store(done.magnitudes.dk, kv, shares.dk)
        _store(done.magnitudes.dv, kv, shares.dv)


def _store(magnitudes: Tensor, at: tuple[int | slice, ...], parts: Parts) -> None:
    """Adds, since keys collect from all blocks; each query's place is still zero."""
    for target, f in zip(magnitudes, fields(Parts), strict=True):
        target[at] += getattr(parts, f.name)
