"""What the kernels have in common: tiles, products, masks, ranges of visible keys and queries."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def start_of(operand, batch, head):
    """Address of the first number of one head; offsets are 64 bits wide from here on."""
    return operand.pointer + batch.to(tl.int64) * operand.batch + head.to(tl.int64) * operand.head


@triton.jit
def load_tile(
    start, row_offsets, row_exists, operand, head_dim, BLOCK_DIM: tl.constexpr, CHECKED: tl.constexpr
):
    """``[rows, BLOCK_DIM]``, zero where there is nothing.

    Args:
        CHECKED: Whether rows may not exist.
    """
    columns = tl.arange(0, BLOCK_DIM)
    addresses = start + row_offsets[:, None] + (columns.to(tl.int64) * operand.column)[None, :]
    exists = columns[None, :] < head_dim
    if CHECKED:
        tile = tl.load(addresses, mask=exists & row_exists[:, None], other=0.0)
    elif head_dim == BLOCK_DIM:
        tile = tl.load(addresses)
    else:
        tile = tl.load(addresses, mask=exists, other=0.0)
    return tile


@triton.jit
def store_tile(
    start, row_offsets, row_exists, operand, tile, head_dim, BLOCK_DIM: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Round a tile to the operand's dtype and store what of it exists."""
    columns = tl.arange(0, BLOCK_DIM)
    addresses = start + row_offsets[:, None] + (columns.to(tl.int64) * operand.column)[None, :]
    exists = (columns[None, :] < head_dim) & row_exists[:, None]
    tl.store(addresses, rounded(tile, operand.pointer.dtype.element_ty, INTERPRETED), mask=exists)


@triton.jit
def rounded(x, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """x to the nearest number of a dtype, ties to even."""
    if INTERPRETED and DTYPE == tl.bfloat16:
        # The interpreter cuts float32 off where a device rounds: round in the bits, cut nothing.
        bits = x.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)
    return x.to(DTYPE)


@triton.jit
def product(a, b, accumulated, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """accumulated + a b, in float32."""
    if INTERPRETED:  # whose products of bfloat16 are wrong
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, accumulated, input_precision=PRECISION)


@triton.jit
def power(x, masks):
    """Weight of a difference of scores, in their unit: to base 2, or natural with a bias."""
    if masks.bias is not None:
        x = x * LOG2_E
    return tl.exp2(x)


@triton.jit
def masked_scores(scores, query, key, batch, head, masks, geometry, sizes):
    """Scores with the bias added, -inf where a pair does not attend.

    Args:
        query, key, head: Indices that broadcast to the shape of the scores.
    """
    exists = (query < sizes.seq_len) & (key < sizes.kv_seq_len)
    attends = exists
    if geometry.after is not None:
        attends = attends & (key <= query + (geometry.offset + geometry.after))
    if geometry.before is not None:
        attends = attends & (key >= query + (geometry.offset - geometry.before))
    if masks.padding is not None:
        padding = masks.padding
        address = padding.pointer + batch.to(tl.int64) * padding.batch
        address += key.to(tl.int64) * padding.column
        attends = attends & (tl.load(address, mask=key < sizes.kv_seq_len, other=0) != 0)
    if masks.keep is not None:
        address = _pair_address(masks.keep, batch, head, query, key)
        attends = attends & (tl.load(address, mask=exists, other=0) != 0)
    if masks.bias is not None:
        address = _pair_address(masks.bias, batch, head, query, key)
        bias = tl.load(address, mask=exists, other=0.0).to(tl.float32)
        scores += bias
        attends = attends & (bias != MINUS_INFINITY)
    return tl.where(attends, scores, MINUS_INFINITY)


@triton.jit
def _pair_address(mask, batch, head, query, key):
    return (
        start_of(mask, batch, head)
        + query.to(tl.int64) * mask.row
        + key.to(tl.int64) * mask.column
    )


@triton.jit
def visible_keys(first_query, last_query, first_key, end_key, geometry, BLOCK: tl.constexpr):
    """Which of the keys [first_key, end_key) some query sees, and which of them all queries see.

    Returns:
        start, full_start, full_stop, stop: tiles in [start, stop) have visible pairs, and those in
        [full_start, full_stop) no other. ``first_key`` and the first three are multiples of BLOCK.
    """
    start, stop = first_key, end_key
    full_start, full_stop = first_key, end_key
    if geometry.before is not None:
        start = tl.maximum(start, (first_query + (geometry.offset - geometry.before)) // BLOCK * BLOCK)
        full_start = tl.maximum(full_start, last_query + (geometry.offset - geometry.before))
    if geometry.after is not None:
        stop = tl.minimum(stop, last_query + (geometry.offset + geometry.after + 1))
        full_stop = tl.minimum(full_stop, first_query + (geometry.offset + geometry.after + 1))
    return _in_order(start, full_start, full_stop, stop, BLOCK)


@triton.jit
def visible_queries(first_key, last_key, end_query, geometry, BLOCK: tl.constexpr):
    """Which of the queries [0, end_query) see some of the keys, and which see all of them.

    Returns:
        As ``visible_keys``, for tiles of queries.
    """
    start, stop = end_query * 0, end_query
    full_start, full_stop = start, stop
    if geometry.after is not None:
        start = tl.maximum(start, (first_key - (geometry.offset + geometry.after)) // BLOCK * BLOCK)
        full_start = tl.maximum(full_start, last_key - (geometry.offset + geometry.after))
    if geometry.before is not None:
        stop = tl.minimum(stop, last_key + (geometry.before - geometry.offset + 1))
        full_stop = tl.minimum(full_stop, first_key + (geometry.before - geometry.offset + 1))
    return _in_order(start, full_start, full_stop, stop, BLOCK)


@triton.jit
def _in_order(start, full_start, full_stop, stop, BLOCK: tl.constexpr):
    """The inner two rounded inwards to tiles, and all four so that none lies before another."""
    stop = tl.maximum(stop, start)
    full_start = tl.minimum((full_start + (BLOCK - 1)) // BLOCK * BLOCK, stop)
    full_start = tl.maximum(full_start, start)
    full_stop = tl.maximum(tl.maximum(full_stop, 0) // BLOCK * BLOCK, full_start)
    return start, full_start, full_stop, stop
