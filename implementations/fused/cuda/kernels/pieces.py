"""What the kernels have in common: tiles, products, masks, ranges of visible keys and queries."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
MINUS_INFINITY = tl.constexpr(float("-inf"))
# Triton's interpreter has no arithmetic in bfloat16: there, its tiles are float32 once loaded.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def start_of(operand, batch, head):
    """Address of the first number of one head; offsets are 64 bits wide from here on."""
    return operand.pointer + batch.to(tl.int64) * operand.batch + head.to(tl.int64) * operand.head


@triton.jit
def line_of(batch, head, query, sizes):
    """Place of a query in tensors that hold one number for each, ``[B, H, L]``."""
    return (batch.to(tl.int64) * sizes.num_heads + head) * sizes.seq_len + query


@triton.jit
def load_tile(
    start, row_offsets, row_exists, operand, sizes,
    BLOCK_DIM: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """``[rows, BLOCK_DIM]``, zero where there is nothing.

    Args:
        CHECKED: Whether rows may not exist.
    """
    columns = tl.arange(0, BLOCK_DIM)
    addresses = start + row_offsets[:, None] + (columns.to(tl.int64) * operand.column)[None, :]
    exists = columns[None, :] < sizes.head_dim
    if CHECKED:
        tile = tl.load(addresses, mask=exists & row_exists[:, None], other=0.0)
    else:
        tile = tl.load(addresses, mask=exists, other=0.0)
    return readable(tile)


@triton.jit
def readable(tile):
    """A tile in a dtype that can be computed with."""
    if INTERPRETED and tile.dtype == tl.bfloat16:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def rows_of(
    operand, descriptor, batch, head, first, exists, sizes,
    BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """The rows of one head from ``first`` on, ``[BLOCK_ROWS, BLOCK_DIM]``; see ``load_tile``.

    Args:
        descriptor: Of the operand, or None: then the tile comes by pointers.
    """
    if descriptor is None:
        row = first + tl.arange(0, BLOCK_ROWS)
        start, offsets = start_of(operand, batch, head), row.to(tl.int64) * operand.row
        tile = load_tile(start, offsets, exists, operand, sizes, BLOCK_DIM, CHECKED)
    else:  # zero beyond the tensor
        tile = readable(descriptor.load([batch, head, first, 0]).reshape(BLOCK_ROWS, BLOCK_DIM))
    return tile


@triton.jit
def store_tile(
    start, row_offsets, row_exists, operand, tile, sizes, BLOCK_DIM: tl.constexpr
):  # fmt: skip
    """Round a tile to the operand's dtype and store what of it exists."""
    columns = tl.arange(0, BLOCK_DIM)
    addresses = start + row_offsets[:, None] + (columns.to(tl.int64) * operand.column)[None, :]
    exists = (columns[None, :] < sizes.head_dim) & row_exists[:, None]
    tl.store(addresses, rounded(tile, operand.pointer.dtype.element_ty), mask=exists)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """x to the nearest number of a dtype, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        # It also cuts float32 off where a device rounds: round in the bits, then nothing is cut.
        bits = x.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)
    return x.to(dtype)


@triton.jit
def product(a, b, accumulated, PRECISION: tl.constexpr):
    """accumulated + a b, in float32."""
    if INTERPRETED:
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
def masked_scores(scores, query, key, batch, head, problem):
    """Scores with the bias added, -inf where a pair does not attend.

    Args:
        query, key, head: Indices that broadcast to the shape of the scores.
    """
    geometry, masks, sizes = problem.geometry, problem.masks, problem.sizes
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
        start_of(mask, batch, head) + query.to(tl.int64) * mask.row + key.to(tl.int64) * mask.column
    )


@triton.jit
def visible_keys(first_query, last_query, first_key, end_key, problem, BLOCK: tl.constexpr):
    """Which of the keys [first_key, end_key) some query sees, and which of them all queries see.

    Returns:
        start, full_start, full_stop, stop: tiles in [start, stop) have visible pairs, and those in
        [full_start, full_stop) no other. ``first_key`` and the first three are multiples of BLOCK.
    """
    geometry = problem.geometry
    start, stop = first_key, end_key
    full_start, full_stop = first_key, end_key
    if geometry.before is not None:
        start = tl.maximum(
            start, (first_query + (geometry.offset - geometry.before)) // BLOCK * BLOCK
        )
        full_start = tl.maximum(full_start, last_query + (geometry.offset - geometry.before))
    if geometry.after is not None:
        stop = tl.minimum(stop, last_query + (geometry.offset + geometry.after + 1))
        full_stop = tl.minimum(full_stop, first_query + (geometry.offset + geometry.after + 1))
    return _in_order(start, full_start, full_stop, stop, BLOCK)


@triton.jit
def visible_queries(first_key, last_key, problem, BLOCK: tl.constexpr):
    """Which of the queries see some of the keys, and which see all of them.

    Returns:
        As ``visible_keys``, for tiles of queries.
    """
    geometry = problem.geometry
    start, stop = 0, problem.sizes.seq_len
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
