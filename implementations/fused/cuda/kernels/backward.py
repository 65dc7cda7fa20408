"""Gradients by recomputing the weights from the statistics of the forward pass (Dao et al. 2022).

With P the weights, dP = dO V^T and delta = rowsum(dO o O): dS = P o (dP - delta), dV = P^T dO,
dK = scale dS^T Q, dQ = scale dS K. One kernel sums over queries, the other over keys; nothing is
added by atomic operations, so that equal calls give equal bits.
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
    visible_queries,
)


@triton.jit
def delta_kernel(
    output, d_output, delta, sizes, BLOCK_QUERIES: tl.constexpr, BLOCK_DIM: tl.constexpr
):
    """delta of one tile of queries, ``[B, H, L]`` float32."""
    num_blocks = tl.cdiv(sizes.seq_len, BLOCK_QUERIES)
    program = tl.program_id(0)
    query = program % num_blocks * BLOCK_QUERIES + tl.arange(0, BLOCK_QUERIES)
    head = program // num_blocks % sizes.num_heads
    batch = program // num_blocks // sizes.num_heads
    exists = query < sizes.seq_len
    query = query.to(tl.int64)
    o_tile = load_tile(
        start_of(output, batch, head), query * output.row, exists, output, sizes.head_dim,
        BLOCK_DIM, True,
    )  # fmt: skip
    d_tile = load_tile(
        start_of(d_output, batch, head), query * d_output.row, exists, d_output, sizes.head_dim,
        BLOCK_DIM, True,
    )  # fmt: skip
    sums = tl.sum(o_tile.to(tl.float32) * d_tile.to(tl.float32), 1)
    tl.store(delta + _line(batch, head, query, sizes), sums, mask=exists)


@triton.jit
def _line(batch, head, query, sizes):
    """Place of a query in the tensors that hold one number for each."""
    return (batch.to(tl.int64) * sizes.num_heads + head) * sizes.seq_len + query


@triton.jit
def _load_statistics(statistics, delta, line, exists):
    """Maximum (0 where a query has no keys), logarithm of the sum, and delta of queries."""
    maximum = tl.load(statistics.maximum + line, mask=exists, other=0.0)
    maximum = tl.where(maximum == MINUS_INFINITY, 0.0, maximum)
    log_sum = tl.load(statistics.log_sum + line, mask=exists, other=0.0)
    return maximum, log_sum, tl.load(delta + line, mask=exists, other=0.0)


@triton.jit
def _weights(
    products, maximum, log_sum, query, key, batch, head, masks, geometry, sizes, score_scale,
    EDGE: tl.constexpr,
):  # fmt: skip
    """P, whichever way round the tile lies; the indices and statistics broadcast to it."""
    MASKED: tl.constexpr = (
        EDGE
        or masks.padding is not None
        or masks.keep is not None
        or masks.bias is not None
    )
    scores = products * score_scale
    if MASKED:
        scores = masked_scores(scores, query, key, batch, head, masks, geometry, sizes)
    if masks.bias is None:
        return tl.exp2(scores - (maximum + log_sum))
    # Not in one sum: beside a large bias the logarithm would be rounded away.
    return power(scores - maximum, masks) * tl.exp2(-log_sum)


@triton.jit
def key_gradients_kernel(
    q,
    k,
    v,
    d_output,
    d_k,
    d_v,
    statistics,
    delta,
    masks,
    geometry,
    sizes,
    score_scale,
    scale,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """dK and dV of one tile of keys, from all queries of all heads that share them."""
    num_blocks = tl.cdiv(sizes.kv_seq_len, BLOCK_KEYS)
    program = tl.program_id(0)
    block = program % num_blocks  # under a causal mask the first keys have the most queries
    kv_head = program // num_blocks % sizes.num_kv_heads
    batch = program // num_blocks // sizes.num_kv_heads
    key = block * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
    exists = key < sizes.kv_seq_len
    k_tile = load_tile(
        start_of(k, batch, kv_head), key.to(tl.int64) * k.row, exists, k, sizes.head_dim,
        BLOCK_DIM, True,
    )  # fmt: skip
    v_tile = load_tile(
        start_of(v, batch, kv_head), key.to(tl.int64) * v.row, exists, v, sizes.head_dim,
        BLOCK_DIM, True,
    )  # fmt: skip

    last_key = tl.minimum(block * BLOCK_KEYS + BLOCK_KEYS, sizes.kv_seq_len) - 1
    bounds = visible_queries(
        block * BLOCK_KEYS, last_key, sizes.seq_len, geometry, BLOCK_QUERIES
    )
    group_size = sizes.num_heads // sizes.num_kv_heads
    k_sum = tl.zeros([BLOCK_KEYS, BLOCK_DIM], tl.float32)
    v_sum = tl.zeros([BLOCK_KEYS, BLOCK_DIM], tl.float32)
    for member in range(group_size):
        head = kv_head * group_size + member
        for part in tl.static_range(3):
            if part > 0 or geometry.after is not None:
                k_sum, v_sum = _add_queries(
                    k_sum, v_sum, k_tile, v_tile, q, d_output, statistics, delta, key, batch, head,
                    bounds[part], bounds[part + 1], masks, geometry, sizes, score_scale,
                    BLOCK_QUERIES, BLOCK_DIM, PRECISION, INTERPRETED, EDGE=part != 1,
                )  # fmt: skip

    store_tile(
        start_of(d_k, batch, kv_head), key.to(tl.int64) * d_k.row, exists, d_k, k_sum * scale,
        sizes.head_dim, BLOCK_DIM, INTERPRETED,
    )  # fmt: skip
    store_tile(
        start_of(d_v, batch, kv_head), key.to(tl.int64) * d_v.row, exists, d_v, v_sum,
        sizes.head_dim, BLOCK_DIM, INTERPRETED,
    )  # fmt: skip


@triton.jit
def _add_queries(
    k_sum,
    v_sum,
    k_tile,
    v_tile,
    q,
    d_output,
    statistics,
    delta,
    key,
    batch,
    head,
    start,
    stop,
    masks,
    geometry,
    sizes,
    score_scale,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Add what the queries [start, stop) of one head give; tiles lie keys by queries."""
    q_start, d_start = start_of(q, batch, head), start_of(d_output, batch, head)
    for first in range(start, stop, BLOCK_QUERIES):
        query = first + tl.arange(0, BLOCK_QUERIES)
        exists = query < sizes.seq_len
        q_tile = load_tile(
            q_start, query.to(tl.int64) * q.row, exists, q, sizes.head_dim, BLOCK_DIM, EDGE
        )
        d_tile = load_tile(
            d_start, query.to(tl.int64) * d_output.row, exists, d_output, sizes.head_dim,
            BLOCK_DIM, EDGE,
        )  # fmt: skip
        maximum, log_sum, deltas = _load_statistics(
            statistics, delta, _line(batch, head, query, sizes), exists
        )
        weights = _weights(
            product(k_tile, tl.trans(q_tile), None, PRECISION, INTERPRETED),
            maximum[None, :], log_sum[None, :], query[None, :], key[:, None], batch, head,
            masks, geometry, sizes, score_scale, EDGE,
        )  # fmt: skip
        v_sum = product(
            rounded(weights, d_tile.dtype, INTERPRETED), d_tile, v_sum, PRECISION, INTERPRETED
        )
        d_weights = product(v_tile, tl.trans(d_tile), None, PRECISION, INTERPRETED)
        d_scores = weights * (d_weights - deltas[None, :])
        k_sum = product(
            rounded(d_scores, q_tile.dtype, INTERPRETED), q_tile, k_sum, PRECISION, INTERPRETED
        )
    return k_sum, v_sum


@triton.jit
def query_gradients_kernel(
    q,
    k,
    v,
    d_output,
    d_q,
    statistics,
    delta,
    masks,
    geometry,
    sizes,
    score_scale,
    scale,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """dQ of one tile of queries."""
    num_blocks = tl.cdiv(sizes.seq_len, BLOCK_QUERIES)
    program = tl.program_id(0)
    block = num_blocks - 1 - program % num_blocks
    head = program // num_blocks % sizes.num_heads
    batch = program // num_blocks // sizes.num_heads
    query = block * BLOCK_QUERIES + tl.arange(0, BLOCK_QUERIES)
    exists = query < sizes.seq_len
    q_tile = load_tile(
        start_of(q, batch, head), query.to(tl.int64) * q.row, exists, q, sizes.head_dim,
        BLOCK_DIM, True,
    )  # fmt: skip
    d_tile = load_tile(
        start_of(d_output, batch, head), query.to(tl.int64) * d_output.row, exists, d_output,
        sizes.head_dim, BLOCK_DIM, True,
    )  # fmt: skip
    maximum, log_sum, deltas = _load_statistics(
        statistics, delta, _line(batch, head, query, sizes), exists
    )

    last_query = tl.minimum(block * BLOCK_QUERIES + BLOCK_QUERIES, sizes.seq_len) - 1
    bounds = visible_keys(
        block * BLOCK_QUERIES, last_query, 0, sizes.kv_seq_len, geometry, BLOCK_KEYS
    )
    q_sum = tl.zeros([BLOCK_QUERIES, BLOCK_DIM], tl.float32)
    for part in tl.static_range(3):
        if part > 0 or geometry.before is not None:
            q_sum = _add_keys(
                q_sum, q_tile, d_tile, maximum, log_sum, deltas, k, v, query, batch, head,
                bounds[part], bounds[part + 1], masks, geometry, sizes, score_scale,
                BLOCK_KEYS, BLOCK_DIM, PRECISION, INTERPRETED, EDGE=part != 1,
            )  # fmt: skip
    store_tile(
        start_of(d_q, batch, head), query.to(tl.int64) * d_q.row, exists, d_q, q_sum * scale,
        sizes.head_dim, BLOCK_DIM, INTERPRETED,
    )  # fmt: skip


@triton.jit
def _add_keys(
    q_sum,
    q_tile,
    d_tile,
    maximum,
    log_sum,
    deltas,
    k,
    v,
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
    """Add what the keys [start, stop) give; tiles lie queries by keys."""
    kv_head = head // (sizes.num_heads // sizes.num_kv_heads)
    k_start, v_start = start_of(k, batch, kv_head), start_of(v, batch, kv_head)
    for first in range(start, stop, BLOCK_KEYS):
        key = first + tl.arange(0, BLOCK_KEYS)
        exists = key < sizes.kv_seq_len
        k_tile = load_tile(
            k_start, key.to(tl.int64) * k.row, exists, k, sizes.head_dim, BLOCK_DIM, EDGE
        )
        v_tile = load_tile(
            v_start, key.to(tl.int64) * v.row, exists, v, sizes.head_dim, BLOCK_DIM, EDGE
        )
        weights = _weights(
            product(q_tile, tl.trans(k_tile), None, PRECISION, INTERPRETED),
            maximum[:, None], log_sum[:, None], query[:, None], key[None, :], batch, head,
            masks, geometry, sizes, score_scale, EDGE,
        )  # fmt: skip
        d_weights = product(d_tile, tl.trans(v_tile), None, PRECISION, INTERPRETED)
        d_scores = weights * (d_weights - deltas[:, None])
        q_sum = product(
            rounded(d_scores, k_tile.dtype, INTERPRETED), k_tile, q_sum, PRECISION, INTERPRETED
        )
    return q_sum
