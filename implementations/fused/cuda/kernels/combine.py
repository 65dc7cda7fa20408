"""Joins what programs computed over parts of the keys."""

from __future__ import annotations

import triton
import triton.language as tl

from implementations.fused.cuda.kernels.pieces import MINUS_INFINITY, power, rounded, start_of


@triton.jit
def combine_kernel(
    parts, part_statistics, output, statistics, problem, num_parts, BLOCK_DIM: tl.constexpr
):
    """Output and statistics of one query: the parts' outputs, weighted by their sums.

    Args:
        parts: ``[num_parts * B, H, L, D]`` float32, contiguous.
    """
    sizes = problem.sizes
    line = tl.program_id(0).to(tl.int64)
    lines = tl.num_programs(0).to(tl.int64)
    query = line % sizes.seq_len
    head = line // sizes.seq_len % sizes.num_heads
    batch = line // sizes.seq_len // sizes.num_heads

    peak = tl.full([], MINUS_INFINITY, tl.float32)
    for part in range(num_parts):
        peak = tl.maximum(peak, tl.load(part_statistics.maximum + part * lines + line))
    shift = tl.where(peak == MINUS_INFINITY, 0.0, peak)

    columns = tl.arange(0, BLOCK_DIM)
    exists = columns < sizes.head_dim
    total = tl.zeros([], tl.float32)
    sums = tl.zeros([BLOCK_DIM], tl.float32)
    for part in range(num_parts):
        at = part * lines + line
        maximum = tl.load(part_statistics.maximum + at)
        log_sum = tl.load(part_statistics.log_sum + at)
        share = power(maximum - shift, problem.masks) * tl.exp2(log_sum)
        values = tl.load(parts.pointer + at * sizes.head_dim + columns, mask=exists, other=0.0)
        sums += share * values
        total += share

    total = tl.where(total == 0.0, 1.0, total)
    address = start_of(output, batch, head) + query * output.row
    address += columns.to(tl.int64) * output.column
    tl.store(address, rounded(sums / total, output.pointer.dtype.element_ty), mask=exists)
    tl.store(statistics.maximum + line, peak)
    tl.store(statistics.log_sum + line, tl.log2(total))
