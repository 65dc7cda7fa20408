"""What a launch hands over, in groups; a kernel reads the members by name.

A member that is None is known to the compiler, which leaves out what it would be needed for.
Shapes: B batch_size, H num_heads, G num_kv_heads, L seq_len, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from harness.interface import AttentionConfig, MaskTensors

_LOG2_E = math.log2(math.e)


class Operand(NamedTuple):
    """A tensor of four axes and its strides in elements."""

    pointer: Tensor
    batch: int
    head: int
    row: int
    column: int

    @classmethod
    def of(cls, tensor: Tensor) -> Operand:
        """From ``[B, H, L, D]``, any strides."""
        return cls(tensor, *tensor.stride())


class Statistics(NamedTuple):
    """Of each query's scores, ``[B, H, L]`` float32 each, contiguous.

    Args:
        maximum: -inf where a query has no keys; times log2(e) unless there is a bias.
        log_sum: Logarithm to base 2 of the sum of the weights relative to the maximum. Apart from
            it, for their sum would lose it beside a large maximum.
    """

    maximum: Tensor
    log_sum: Tensor

    @classmethod
    def like(cls, q: Tensor) -> Statistics:
        """Memory for those of queries ``[B, H, L, D]``."""
        return cls(*(q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2)))


class Known(NamedTuple):
    """What the backward kernels read.

    Args:
        delta: Sums of output times its gradient over D, ``[B, H, L]`` float32.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    d_output: Tensor
    statistics: Statistics
    delta: Tensor


class MaskOperands(NamedTuple):
    """The mask's tensors, broadcast by strides of 0; booleans as bytes.

    Args:
        present: 1 where there is any, else None: both known to the compiler, as no boolean is.
    """

    padding: Operand | None
    keep: Operand | None
    bias: Operand | None
    present: int | None

    @classmethod
    def of(cls, c: AttentionConfig, masks: MaskTensors) -> MaskOperands:
        padding, keep, bias = masks.key_padding, masks.keep, masks.bias
        full = (c.batch_size, c.num_heads, c.seq_len, c.kv_seq_len)
        return cls(
            None if padding is None else Operand.of(padding.view(torch.uint8)[:, None, None]),
            None if keep is None else Operand.of(keep.view(torch.uint8).expand(full)),
            None if bias is None else Operand.of(bias.expand(full)),
            present=None if padding is keep is bias is None else 1,
        )


class Geometry(NamedTuple):
    """Which keys a query sees by position: query i stands at key i + offset.

    Args:
        before: How many keys it sees before that position; None: all.
        after: The same behind it; 0 under a causal mask.
    """

    offset: int
    before: int | None
    after: int | None

    @classmethod
    def of(cls, c: AttentionConfig) -> Geometry:
        reach = None if c.mask.window is None else c.mask.window - 1
        return cls(c.causal_offset, reach, 0 if c.is_causal else reach)


class Sizes(NamedTuple):
    """Sizes of a problem."""

    batch_size: int
    num_heads: int
    num_kv_heads: int
    seq_len: int
    kv_seq_len: int
    head_dim: int

    @classmethod
    def of(cls, c: AttentionConfig) -> Sizes:
        return cls(c.batch_size, c.num_heads, c.num_kv_heads, c.seq_len, c.kv_seq_len, c.head_dim)


class Problem(NamedTuple):
    """All of a launch but its tensors.

    Args:
        score_scale: The scale, times log2(e) unless there is a bias.
    """

    sizes: Sizes
    geometry: Geometry
    masks: MaskOperands
    score_scale: float
    scale: float

    @classmethod
    def of(cls, c: AttentionConfig, masks: MaskTensors) -> Problem:
        unit = 1.0 if masks.bias is not None else _LOG2_E
        operands = MaskOperands.of(c, masks)
        return cls(Sizes.of(c), Geometry.of(c), operands, c.scale * unit, c.scale)
