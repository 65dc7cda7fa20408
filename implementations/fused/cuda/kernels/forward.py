"""Attention of a tile of queries: online softmax over tiles of keys (Dao 2023).

A tile may hold several query heads that share a key head (PACK), so that a few queries fill it and
keys are read once; and the keys may be split among programs, whose outputs ``combine`` joins.
"""

from __future__ import annotations

import triton
import triton.language as tl

from implementations.fused.cuda.kernels.pieces import (
    MINUS_INFINITY,
    line_of,
    load_tile,
    masked_scores,
    power,
    product,
    rounded,
    rows_of,
    start_of,
    store_tile,
    visible_keys,
)


@triton.jit
def forward_kernel(
    q, k, v, output, statistics, problem, keys_per_part, k_descriptor, v_descriptor,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    PACK: tl.constexpr, NEGATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output and statistics of one tile of queries over one part of the keys.

    Args:
        output: Of the parts: part p of batch entry b is its entry p * batch_size + b.
        problem: Its score_scale without the sign, which is NEGATED.
        keys_per_part: A multiple of BLOCK_KEYS.
        k_descriptor, v_descriptor: None where k and v are read by pointers.
    """
    sizes = problem.sizes
    first_row, head, entry = _place(sizes, BLOCK_QUERIES, PACK)
    batch, part = entry % sizes.batch_size, entry // sizes.batch_size
    row = first_row + tl.arange(0, BLOCK_QUERIES)
    query, member = row // PACK, row % PACK
    exists = query < sizes.seq_len
    offsets = query.to(tl.int64) * q.row + member.to(tl.int64) * q.head
    q_tile = load_tile(start_of(q, batch, head), offsets, exists, q, sizes, BLOCK_DIM, True)
    q_tile = _poisoned(-q_tile if NEGATED else q_tile)

    last_query = tl.minimum((first_row + BLOCK_QUERIES - 1) // PACK, sizes.seq_len - 1)
    first_key = part * keys_per_part
    end_key = tl.minimum(first_key + keys_per_part, sizes.kv_seq_len)
    bounds = visible_keys(first_row // PACK, last_query, first_key, end_key, problem, BLOCK_KEYS)
    sums = tl.zeros([BLOCK_QUERIES, BLOCK_DIM], tl.float32)
    peak = tl.full([BLOCK_QUERIES], MINUS_INFINITY, tl.float32)
    total = tl.zeros([BLOCK_QUERIES], tl.float32)
    for span in tl.static_range(3):
        if span > 0 or problem.geometry.before is not None:
            sums, peak, total = _attend(
                sums, peak, total, q_tile, k, v, k_descriptor, v_descriptor,
                query, batch, head, member, bounds[span], bounds[span + 1], problem,
                BLOCK_KEYS, BLOCK_DIM, PRECISION, EDGE=span != 1,
            )  # fmt: skip

    total = tl.where(total == 0.0, 1.0, total)  # a query without keys gets zeros
    offsets = query.to(tl.int64) * output.row + member.to(tl.int64) * output.head
    start = start_of(output, entry, head)
    store_tile(start, offsets, exists, output, sums / total[:, None], sizes, BLOCK_DIM)
    line = line_of(entry, head + member, query, sizes)
    tl.store(statistics.maximum + line, peak, mask=exists)
    tl.store(statistics.log_sum + line, tl.log2(total), mask=exists)


@triton.jit
def _place(sizes, BLOCK_QUERIES: tl.constexpr, PACK: tl.constexpr):
    """First row, first head and entry of the output that this program computes."""
    num_blocks = tl.cdiv(sizes.seq_len * PACK, BLOCK_QUERIES)
    program = tl.program_id(0)
    # Neighbours share keys; under a causal mask the longest rows come first.
    block = num_blocks - 1 - program % num_blocks
    rest, num_groups = program // num_blocks, sizes.num_heads // PACK
    return block * BLOCK_QUERIES, rest % num_groups * PACK, rest // num_groups


@triton.jit
def _poisoned(q_tile):
    """Rows with a number that is not finite are NaN throughout, so that their scores are.

    An infinite one can give scores that are all -inf, the sign of pairs that do not attend.
    """
    is_finite = tl.abs(q_tile.to(tl.float32)) < float("inf")
    spoiled = tl.max(tl.where(is_finite, 0, 1), 1)
    return tl.where(spoiled[:, None] != 0, float("nan"), q_tile).to(q_tile.dtype)


@triton.jit
def _attend(
    sums, peak, total, q_tile, k, v, k_descriptor, v_descriptor,
    query, batch, head, member, start, stop, problem,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, PRECISION: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """Take the keys [start, stop) into the running sums, ``[queries, D]``, of weighted values.

    Args:
        peak: Largest score so far, ``[queries]``.
        total: Sum of the weights relative to it, ``[queries]``.
        EDGE: Whether tiles may hold pairs that do not attend by position, or keys past the end.
    """
    sizes, masks = problem.sizes, problem.masks
    kv_head = head // (sizes.num_heads // sizes.num_kv_heads)
    for first in range(start, stop, BLOCK_KEYS):
        key = first + tl.arange(0, BLOCK_KEYS)
        exists = key < sizes.kv_seq_len
        k_tile = rows_of(
            k, k_descriptor, batch, kv_head, first, exists, sizes, BLOCK_KEYS, BLOCK_DIM, EDGE
        )
        products = product(q_tile, tl.trans(k_tile), None, PRECISION)
        scores = products * problem.score_scale
        if EDGE or masks.present is not None:
            heads = (head + member)[:, None]
            scores = masked_scores(scores, query[:, None], key[None, :], batch, heads, problem)
            new_peak = tl.maximum(peak, tl.max(scores, 1))
        else:  # the scale after the maximum: scale and difference become one instruction
            new_peak = tl.maximum(peak, tl.max(products, 1) * problem.score_scale)
        shift = tl.where(new_peak == MINUS_INFINITY, 0.0, new_peak)
        weights, decay = power(scores - shift[:, None], masks), power(peak - shift, masks)
        total = total * decay + tl.sum(weights, 1)
        v_tile = rows_of(
            v, v_descriptor, batch, kv_head, first, exists, sizes, BLOCK_KEYS, BLOCK_DIM, EDGE
        )
        weights = rounded(weights, v.pointer.dtype.element_ty)
        sums = product(weights, v_tile, sums * decay[:, None], PRECISION)
        peak = new_peak
    return sums, peak, total
