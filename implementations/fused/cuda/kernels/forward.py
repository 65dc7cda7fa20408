"""Attention of a tile of queries: online softmax over tiles of keys (Dao 2023).

A tile may hold several query heads that share a key head (PACK), so that a few queries fill it and
keys are read once; and the keys may be split among programs, whose outputs ``combine`` joins.
"""

from __future__ import annotations

import triton
import triton.language as tl

from implementations.fused.cuda.kernels.pieces import (
    MINUS_INFINITY,
    load_tile,
    masked_scores,
    power,
    product,
    rounded,
    start_of,
    store_tile,
    visible_keys,
)


@triton.jit
def forward_kernel(
    q,
    k,
    v,
    output,
    statistics,
    masks,
    geometry,
    sizes,
    score_scale,
    keys_per_split,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PACK: tl.constexpr,
    NEGATED: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Output and statistics of one tile of queries over one part of the keys.

    Args:
        output: Of the parts: part p of batch entry b is its batch entry p * batch_size + b.
        score_scale: Without its sign, which is NEGATED.
        keys_per_split: A multiple of BLOCK_KEYS.
    """
    num_blocks = tl.cdiv(sizes.seq_len * PACK, BLOCK_QUERIES)
    program = tl.program_id(0)
    block = num_blocks - 1 - program % num_blocks  # the longest rows of a causal mask first
    first_head = program // num_blocks % (sizes.num_heads // PACK) * PACK
    entry = program // num_blocks // (sizes.num_heads // PACK)
    batch, split = entry % sizes.batch_size, entry // sizes.batch_size

    row = block * BLOCK_QUERIES + tl.arange(0, BLOCK_QUERIES)
    query, member = row // PACK, row % PACK
    exists = query < sizes.seq_len
    offsets = query.to(tl.int64) * q.row + member.to(tl.int64) * q.head
    q_tile = load_tile(
        start_of(q, batch, first_head), offsets, exists, q, sizes.head_dim, BLOCK_DIM, True
    )
    q_tile = _poisoned(-q_tile if NEGATED else q_tile)

    first_query = block * BLOCK_QUERIES // PACK
    last_query = tl.minimum((block * BLOCK_QUERIES + BLOCK_QUERIES - 1) // PACK, sizes.seq_len - 1)
    first_key = split * keys_per_split
    end_key = tl.minimum(first_key + keys_per_split, sizes.kv_seq_len)
    bounds = visible_keys(
        first_query, last_query, first_key, end_key, geometry, BLOCK_KEYS
    )

    kv_head = first_head // (sizes.num_heads // sizes.num_kv_heads)
    k_start, v_start = start_of(k, batch, kv_head), start_of(v, batch, kv_head)
    head = first_head + member
    peak = tl.full([BLOCK_QUERIES], MINUS_INFINITY, tl.float32)
    total = tl.zeros([BLOCK_QUERIES], tl.float32)
    accumulated = tl.zeros([BLOCK_QUERIES, BLOCK_DIM], tl.float32)
    for part in tl.static_range(3):
        if part > 0 or geometry.before is not None:
            accumulated, peak, total = _attend(
                accumulated, peak, total, q_tile, k, v, k_start, v_start, query, batch, head,
                bounds[part], bounds[part + 1], masks, geometry, sizes, score_scale,
                BLOCK_KEYS, BLOCK_DIM, PRECISION, INTERPRETED, EDGE=part != 1,
            )  # fmt: skip

    total = tl.where(total == 0.0, 1.0, total)  # a query without keys gets zeros
    out_offsets = query.to(tl.int64) * output.row + member.to(tl.int64) * output.head
    store_tile(
        start_of(output, entry, first_head), out_offsets, exists, output,
        accumulated / total[:, None], sizes.head_dim, BLOCK_DIM, INTERPRETED,
    )  # fmt: skip
    line = (entry.to(tl.int64) * sizes.num_heads + head) * sizes.seq_len + query
    tl.store(statistics.maximum + line, peak, mask=exists)
    tl.store(statistics.log_sum + line, tl.log2(total), mask=exists)


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
    accumulated,
    peak,
    total,
    q_tile,
    k,
    v,
    k_start,
    v_start,
    query,
    batch,
    head,
    start,
    stop,
    masks,
    geometry,
    sizes,
    score_scale,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Take the keys [start, stop) into the running sums.

    Args:
        EDGE: Whether tiles may hold pairs that do not attend by position, or keys past the end.
    """
    MASKED: tl.constexpr = (
        EDGE
        or masks.padding is not None
        or masks.keep is not None
        or masks.bias is not None
    )
    for first in range(start, stop, BLOCK_KEYS):
        key = first + tl.arange(0, BLOCK_KEYS)
        exists = key < sizes.kv_seq_len
        k_tile = load_tile(
            k_start, key.to(tl.int64) * k.row, exists, k, sizes.head_dim, BLOCK_DIM, EDGE
        )
        products = product(q_tile, tl.trans(k_tile), None, PRECISION, INTERPRETED)
        scores = products * score_scale
        if MASKED:
            scores = masked_scores(
                scores, query[:, None], key[None, :], batch, head[:, None], masks, geometry, sizes
            )
            new_peak = tl.maximum(peak, tl.max(scores, 1))
        else:  # the scale after the maximum: scale and difference become one instruction
            new_peak = tl.maximum(peak, tl.max(products, 1) * score_scale)
        shift = tl.where(new_peak == MINUS_INFINITY, 0.0, new_peak)
        weights = power(scores - shift[:, None], masks)
        decay = power(peak - shift, masks)
        total = total * decay + tl.sum(weights, 1)
        v_tile = load_tile(
            v_start, key.to(tl.int64) * v.row, exists, v, sizes.head_dim, BLOCK_DIM, EDGE
        )
        accumulated = product(
            rounded(weights, v_tile.dtype, INTERPRETED),
            v_tile,
            accumulated * decay[:, None],
            PRECISION,
            INTERPRETED,
        )
        peak = new_peak
    return accumulated, peak, total
