"""Scores and softmax in float64, in blocks of rows of one head: what the oracle is made of.

Written from the definition and sharing no code with any implementation, masks included. Masked
pairs are absent: probability exactly 0 whatever stands there. A query without any key has only such
pairs, and lse -inf.

Suffixes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len, R rows of
a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.attention import AttentionConfig
from harness.numerics.problem import Problem

# Scores of a block: small enough that its passes stay in the second-level cache, but rows enough
# that the products with them are not bound by memory.
BLOCK_SCORES = 1 << 18
LEAST_ROWS = 128


@dataclass(frozen=True)
class Block:
    """Consecutive entries of the wanted rows in one head, with their softmax; all float64.

    Args:
        span: Which of the wanted rows these are.
        rows: ``[R]``, their positions in the sequence.
        q: ``[R, D]``.
        k: ``[S, D]``.
        v: ``[S, D]``.
        product: ``[R, S]``, scale * q k^T, before bias and mask.
        bias: ``[R, S]``, None where there is none.
        keep: ``[R, S]``, True = attend; None where every pair attends.
        probabilities: ``[R, S]``, exactly 0 where masked.
        lse: ``[R]``, log of the sum of exponentials.
    """

    batch: int
    head: int
    kv_head: int
    span: slice
    rows: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    product: Tensor
    bias: Tensor | None
    keep: Tensor | None
    probabilities: Tensor
    lse: Tensor


def blocks(problem: Problem, rows: Tensor | None = None) -> Iterator[Block]:
    """All wanted rows of all heads, block by block, the heads of one batch entry in order.

    Args:
        rows: ``[n]`` positions of the wanted queries, ascending; None for all.
    """
    c = problem.config
    wanted = torch.arange(c.seq_len) if rows is None else rows
    size = rows_of_block(c.kv_seq_len)
    for batch in range(c.batch_size):
        for head in range(c.num_heads):
            kv_head = head // c.group_size
            k = problem.k_BGSD[batch, kv_head].double()
            v = problem.v_BGSD[batch, kv_head].double()
            for start in range(0, len(wanted), size):
                span = slice(start, min(start + size, len(wanted)))
                yield _block(problem, batch, head, span, wanted[span], k, v)


def rows_of_block(num_keys: int) -> int:
    """Number of rows that are worked on at a time."""
    return max(LEAST_ROWS, BLOCK_SCORES // max(1, num_keys))


def _block(
    problem: Problem, batch: int, head: int, span: slice, rows: Tensor, k: Tensor, v: Tensor
) -> Block:
    c = problem.config
    q = problem.q_BHLD[batch, head, rows].double()
    product = (q @ k.T) * c.scale
    bias = bias_rows(problem, batch, head, rows)
    keep = keep_rows(problem, batch, head, rows, bias)
    bias = None if bias is None else bias.double()
    scores = product if bias is None else product + bias
    probabilities, lse = _softmax(scores, keep)
    return Block(
        batch, head, head // c.group_size, span, rows, q, k, v, product, bias, keep,
        probabilities, lse,
    )  # fmt: skip


def _softmax(scores: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    if not scores.shape[-1]:
        return scores, scores.new_full(scores.shape[:1], -torch.inf)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    largest = scores.amax(dim=-1, keepdim=True)
    if keep is not None:
        largest = largest.masked_fill(~keep.any(dim=-1, keepdim=True), 0.0)
    weights = (scores - largest).exp_()
    if keep is not None:
        weights = weights.masked_fill_(~keep, 0.0)  # NaN in the row must not enter absent pairs
    total = weights.sum(dim=-1, keepdim=True)
    lse = (largest + total.log()).squeeze(-1)
    return weights.div_(total.masked_fill(total == 0, 1.0)), lse


def keep_rows(
    problem: Problem, batch: int, head: int, rows: Tensor, bias: Tensor | None
) -> Tensor | None:
    """``[R, S]``: the AND of all parts of the mask, from their definitions."""
    c, masks = problem.config, problem.masks
    key = torch.arange(c.kv_seq_len)
    distance = (rows + c.causal_offset)[:, None] - key  # > 0: the key lies before the query
    parts = []
    if c.is_causal:
        parts.append(distance >= 0)
    if c.mask.window is not None:
        parts.append(distance.abs() < c.mask.window)
    if masks.key_padding is not None:
        parts.append(masks.key_padding[batch].expand(len(rows), -1))
    given = _tile(masks.keep, batch, head, rows, c)
    if given is not None:
        parts.append(given)
    if bias is not None and bool((bias == -torch.inf).any()):
        parts.append(bias != -torch.inf)
    return torch.stack(parts).all(dim=0) if parts else None


def bias_rows(problem: Problem, batch: int, head: int, rows: Tensor) -> Tensor | None:
    """``[R, S]``: the additive bias in its own dtype, None where there is none."""
    return _tile(problem.masks.bias, batch, head, rows, problem.config)


def _tile(
    tensor: Tensor | None, batch: int, head: int, rows: Tensor, c: AttentionConfig
) -> Tensor | None:
    """``[R, S]`` of a 2-D or 4-D tensor that broadcasts to ``[B, H, L, S]``."""
    if tensor is None:
        return None
    if tensor.dim() == 4:
        tensor = tensor[batch if tensor.shape[0] > 1 else 0, head if tensor.shape[1] > 1 else 0]
    return tensor.expand(c.seq_len, c.kv_seq_len)[rows]
