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
    line_of,
    masked_scores,
    power,
    product,
    rounded,
    rows_of,
    start_of,
    store_tile,
    visible_keys,
    visible_queries,
)


@triton.jit
def delta_kernel(
    output, d_output, delta, problem, BLOCK_QUERIES: tl.constexpr, BLOCK_DIM: tl.constexpr
):
    """delta of one tile of queries, ``[B, H, L]`` float32."""
    sizes = problem.sizes
    block, head, batch = _place(sizes.seq_len, sizes.num_heads, BLOCK_QUERIES)
    first = block * BLOCK_QUERIES
    query = first + tl.arange(0, BLOCK_QUERIES)
    exists = query < sizes.seq_len
    o_tile = rows_of(
        output, None, batch, head, first, exists, sizes, BLOCK_QUERIES, BLOCK_DIM, True
    ).to(tl.float32)
    d_tile = rows_of(
        d_output, None, batch, head, first, exists, sizes, BLOCK_QUERIES, BLOCK_DIM, True
    ).to(tl.float32)
    tl.store(delta + line_of(batch, head, query, sizes), tl.sum(o_tile * d_tile, 1), mask=exists)


@triton.jit
def key_gradients_kernel(
    q, k, v, d_output, d_k, d_v, statistics, delta, problem, q_descriptor, d_descriptor,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys, from all queries of all heads that share them.

    Args:
        q_descriptor, d_descriptor: Of q and d_output; None where they are read by pointers.
    """
    sizes = problem.sizes
    block, kv_head, batch = _place(sizes.kv_seq_len, sizes.num_kv_heads, BLOCK_KEYS)
    first_key = block * BLOCK_KEYS
    key = first_key + tl.arange(0, BLOCK_KEYS)
    exists = key < sizes.kv_seq_len
    k_tile = rows_of(k, None, batch, kv_head, first_key, exists, sizes, BLOCK_KEYS, BLOCK_DIM, True)
    v_tile = rows_of(v, None, batch, kv_head, first_key, exists, sizes, BLOCK_KEYS, BLOCK_DIM, True)

    last_key = tl.minimum(first_key + BLOCK_KEYS, sizes.kv_seq_len) - 1
    bounds = visible_queries(first_key, last_key, problem, BLOCK_QUERIES)
    k_sum = tl.zeros([BLOCK_KEYS, BLOCK_DIM], tl.float32)
    v_sum = tl.zeros([BLOCK_KEYS, BLOCK_DIM], tl.float32)
    group_size = sizes.num_heads // sizes.num_kv_heads
    for member in range(group_size):
        head = kv_head * group_size + member
        for span in tl.static_range(3):
            if span > 0 or problem.geometry.after is not None:
                k_sum, v_sum = _add_queries(
                    k_sum, v_sum, k_tile, v_tile,
                    q, d_output, q_descriptor, d_descriptor, statistics, delta,
                    key, batch, head, bounds[span], bounds[span + 1], problem,
                    BLOCK_QUERIES, BLOCK_DIM, PRECISION, EDGE=span != 1,
                )  # fmt: skip

    offsets = key.to(tl.int64)
    start = start_of(d_k, batch, kv_head)
    store_tile(start, offsets * d_k.row, exists, d_k, k_sum * problem.scale, sizes, BLOCK_DIM)
    start = start_of(d_v, batch, kv_head)
    store_tile(start, offsets * d_v.row, exists, d_v, v_sum, sizes, BLOCK_DIM)


@triton.jit
def _add_queries(
    k_sum, v_sum, k_tile, v_tile, q, d_output, q_descriptor, d_descriptor, statistics, delta,
    key, batch, head, start, stop, problem,
    BLOCK_QUERIES: tl.constexpr, BLOCK_DIM: tl.constexpr, PRECISION: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """Add what the queries [start, stop) of one head give; tiles lie keys by queries."""
    sizes = problem.sizes
    for first in range(start, stop, BLOCK_QUERIES):
        query = first + tl.arange(0, BLOCK_QUERIES)
        exists = query < sizes.seq_len
        q_tile = rows_of(
            q, q_descriptor, batch, head, first, exists, sizes, BLOCK_QUERIES, BLOCK_DIM, EDGE
        )
        d_tile = rows_of(
            d_output, d_descriptor, batch, head, first, exists, sizes,
            BLOCK_QUERIES, BLOCK_DIM, EDGE,
        )  # fmt: skip
        maximum, log_sum, deltas = _of_queries(statistics, delta, batch, head, query, exists, sizes)
        weights = _weights(
            product(k_tile, tl.trans(q_tile), None, PRECISION), maximum[None, :], log_sum[None, :],
            query[None, :], key[:, None], batch, head, problem, EDGE,
        )  # fmt: skip
        d_weights = product(v_tile, tl.trans(d_tile), None, PRECISION)
        d_scores = rounded(weights * (d_weights - deltas[None, :]), q.pointer.dtype.element_ty)
        weights = rounded(weights, d_output.pointer.dtype.element_ty)
        v_sum = product(weights, d_tile, v_sum, PRECISION)
        k_sum = product(d_scores, q_tile, k_sum, PRECISION)
    return k_sum, v_sum


@triton.jit
def query_gradients_kernel(
    q, k, v, d_output, d_q, statistics, delta, problem, k_descriptor, v_descriptor,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries.

    Args:
        k_descriptor, v_descriptor: None where k and v are read by pointers.
    """
    sizes = problem.sizes
    block, head, batch = _place(sizes.seq_len, sizes.num_heads, BLOCK_QUERIES)
    # The longest rows of a causal mask first.
    first_query = (tl.cdiv(sizes.seq_len, BLOCK_QUERIES) - 1 - block) * BLOCK_QUERIES
    query = first_query + tl.arange(0, BLOCK_QUERIES)
    exists = query < sizes.seq_len
    q_tile = rows_of(
        q, None, batch, head, first_query, exists, sizes, BLOCK_QUERIES, BLOCK_DIM, True
    )
    d_tile = rows_of(
        d_output, None, batch, head, first_query, exists, sizes, BLOCK_QUERIES, BLOCK_DIM, True
    )
    known = _of_queries(statistics, delta, batch, head, query, exists, sizes)

    last_query = tl.minimum(first_query + BLOCK_QUERIES, sizes.seq_len) - 1
    bounds = visible_keys(first_query, last_query, 0, sizes.kv_seq_len, problem, BLOCK_KEYS)
    q_sum = tl.zeros([BLOCK_QUERIES, BLOCK_DIM], tl.float32)
    for span in tl.static_range(3):
        if span > 0 or problem.geometry.before is not None:
            q_sum = _add_keys(
                q_sum, q_tile, d_tile, known, k, v, k_descriptor, v_descriptor, query, batch, head,
                bounds[span], bounds[span + 1], problem,
                BLOCK_KEYS, BLOCK_DIM, PRECISION, EDGE=span != 1,
            )  # fmt: skip
    start, offsets = start_of(d_q, batch, head), query.to(tl.int64) * d_q.row
    store_tile(start, offsets, exists, d_q, q_sum * problem.scale, sizes, BLOCK_DIM)


@triton.jit
def _add_keys(
    q_sum, q_tile, d_tile, known, k, v, k_descriptor, v_descriptor,
    query, batch, head, start, stop, problem,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, PRECISION: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """Add what the keys [start, stop) give; tiles lie queries by keys."""
    sizes = problem.sizes
    maximum, log_sum, deltas = known
    kv_head = head // (sizes.num_heads // sizes.num_kv_heads)
    for first in range(start, stop, BLOCK_KEYS):
        key = first + tl.arange(0, BLOCK_KEYS)
        exists = key < sizes.kv_seq_len
        k_tile = rows_of(
            k, k_descriptor, batch, kv_head, first, exists, sizes, BLOCK_KEYS, BLOCK_DIM, EDGE
        )
        v_tile = rows_of(
            v, v_descriptor, batch, kv_head, first, exists, sizes, BLOCK_KEYS, BLOCK_DIM, EDGE
        )
        weights = _weights(
            product(q_tile, tl.trans(k_tile), None, PRECISION), maximum[:, None], log_sum[:, None],
            query[:, None], key[None, :], batch, head, problem, EDGE,
        )  # fmt: skip
        d_weights = product(d_tile, tl.trans(v_tile), None, PRECISION)
        d_scores = rounded(weights * (d_weights - deltas[:, None]), k.pointer.dtype.element_ty)
        q_sum = product(d_scores, k_tile, q_sum, PRECISION)
    return q_sum


@triton.jit
def _place(length, num_heads, BLOCK: tl.constexpr):
    """Tile, head and batch entry of this program."""
    num_blocks = tl.cdiv(length, BLOCK)
    program = tl.program_id(0)
    rest = program // num_blocks
    return program % num_blocks, rest % num_heads, rest // num_heads


@triton.jit
def _of_queries(statistics, delta, batch, head, query, exists, sizes):
    """Maximum (0 where a query has no keys), logarithm of the sum, and delta of queries."""
    line = line_of(batch, head, query, sizes)
    maximum = tl.load(statistics.maximum + line, mask=exists, other=0.0)
    maximum = tl.where(maximum == MINUS_INFINITY, 0.0, maximum)
    log_sum = tl.load(statistics.log_sum + line, mask=exists, other=0.0)
    return maximum, log_sum, tl.load(delta + line, mask=exists, other=0.0)


@triton.jit
def _weights(
    products, maximum, log_sum, query, key, batch, head, problem, EDGE: tl.constexpr
):  # fmt: skip
    """P, whichever way round the tile lies; indices and statistics broadcast to it."""
    masks = problem.masks
    scores = products * problem.score_scale
    if EDGE or masks.present is not None:
        scores = masked_scores(scores, query, key, batch, head, problem)
    if masks.bias is None:
        return tl.exp2(scores - (maximum + log_sum))
    else:  # not in one sum: beside a large bias the logarithm would be rounded away  # noqa: RET505
        return power(scores - maximum, masks) * tl.exp2(-log_sum)
