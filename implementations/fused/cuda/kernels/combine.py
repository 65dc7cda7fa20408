"""Joins what programs computed over parts of the keys."""

from __future__ import annotations

import triton
import triton.language as tl

from implementations.fused.cuda.kernels.pieces import MINUS_INFINITY, power, rounded, start_of


@triton.jit
def combine_kernel(
    parts,
    part_statistics,
    output,
    statistics,
    masks,
    sizes,
    num_splits,
    BLOCK_DIM: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Output and statistics of one query: the parts' outputs, weighted by their sums."""
    line = tl.program_id(0).to(tl.int64)
    query = line % sizes.seq_len
    head = line // sizes.seq_len % sizes.num_heads
    batch = line // sizes.seq_len // sizes.num_heads
    lines = tl.num_programs(0).to(tl.int64)

    peak = tl.full([], MINUS_INFINITY, tl.float32)
    for split in range(num_splits):
        peak = tl.maximum(peak, tl.load(part_statistics.maximum + split * lines + line))
    shift = tl.where(peak == MINUS_INFINITY, 0.0, peak)

    columns = tl.arange(0, BLOCK_DIM)
    exists = columns < sizes.head_dim
    total = tl.zeros([], tl.float32)
    accumulated = tl.zeros([BLOCK_DIM], tl.float32)
    start = start_of(parts, batch, head) + query * parts.row
    for split in range(num_splits):
        maximum = tl.load(part_statistics.maximum + split * lines + line)
        log_sum = tl.load(part_statistics.log_sum + split * lines + line)
        share = power(maximum - shift, masks) * tl.exp2(log_sum)
        part = start + split * lines * sizes.head_dim  # parts lie one behind the other
        accumulated += share * tl.load(part + columns * parts.column, mask=exists, other=0.0)
        total += share

    total = tl.where(total == 0.0, 1.0, total)
    address = start_of(output, batch, head) + query * output.row
    address += columns.to(tl.int64) * output.column
    result = rounded(accumulated / total, output.pointer.dtype.element_ty, INTERPRETED)
    tl.store(address, result, mask=exists)
    tl.store(statistics.maximum + line, peak)
    tl.store(statistics.log_sum + line, tl.log2(total))
