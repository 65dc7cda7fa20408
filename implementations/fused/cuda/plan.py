"""From a case to launches: everything that stays the same from call to call, made once.

Shapes: B batch_size, H num_heads, G num_kv_heads, L seq_len, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from harness.interface import AttentionConfig, MaskTensors
from implementations.fused.cuda.arguments import Known, Operand, Problem, Statistics
from implementations.fused.cuda.descriptors import descriptors
from implementations.fused.cuda.tiles import Tiles, TileSet, block_dim

LARGEST_GRID = 2**31 - 1  # programs; all axes of the problem lie on the grid's first axis
_DELTA_ROWS = 64  # queries of a program that sums delta


@dataclass(frozen=True)
class Plan:
    """A prepared problem, for tensors of the sizes that it was made for.

    Args:
        precision: How ``tl.dot`` takes float32 factors.
        pack: Query heads in one tile of the forward pass.
        parts: Parts into which the forward pass divides the keys.
        heads_inside: Whether the output lies as ``[B, L, H, D]`` in memory, where a layer joins its
            heads without a copy.
    """

    config: AttentionConfig
    masks: MaskTensors
    tiles: TileSet
    precision: str = "ieee"
    pack: int = 1
    parts: int = 1
    heads_inside: bool = False

    @property
    def without_masks(self) -> Plan:
        """The same without the tensors of its mask."""
        return replace(self, masks=MaskTensors())

    def with_tiles(self, tiles: TileSet) -> Plan:
        return replace(self, tiles=tiles)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Statistics]:
        """Output and what the backward pass needs beside it.

        Args:
            q: ``[B, H, L, D]``, any strides, as all tensors here.
            k: ``[B, G, S, D]``.
            v: ``[B, G, S, D]``.

        Returns:
            ``[B, H, L, D]`` in the inputs' dtype, and one number of each kind for each query.
        """
        output = self.new_output(q)
        statistics = Statistics.like(q)
        if self.is_empty:
            statistics.maximum.fill_(-math.inf)
            return output.zero_(), statistics._replace(log_sum=statistics.log_sum.zero_())
        if self.parts == 1:
            self._attend(q, k, v, output, statistics)
        else:
            self._attend_in_parts(q, k, v, output, statistics)
        return output, statistics

    def lse(self, statistics: Statistics) -> Tensor:
        """Natural logarithm of each query's sum of exponentials, ``[B, H, L]``."""
        of_maximum = 1.0 if self.masks.bias is not None else math.log(2)
        return statistics.maximum * of_maximum + statistics.log_sum * math.log(2)

    def new_output(self, q: Tensor) -> Tensor:
        """Memory for the output, ``[B, H, L, D]``."""
        if not self.heads_inside:
            return torch.empty(q.shape, dtype=q.dtype, device=q.device)
        batch_size, num_heads, seq_len, head_dim = q.shape
        shape = (batch_size, seq_len, num_heads, head_dim)
        return torch.empty(shape, dtype=q.dtype, device=q.device).transpose(1, 2)

    def _attend_in_parts(
        self, q: Tensor, k: Tensor, v: Tensor, output: Tensor, statistics: Statistics
    ) -> None:
        from implementations.fused.cuda.kernels.combine import combine_kernel

        c = self.config
        shape = (self.parts * c.batch_size, *q.shape[1:])
        parts = torch.empty(shape, dtype=torch.float32, device=q.device)
        part_statistics = Statistics.like(parts)
        self._attend(q, k, v, parts, part_statistics)
        combine_kernel[(c.batch_size * c.num_heads * c.seq_len,)](
            Operand.of(parts),
            part_statistics,
            Operand.of(output),
            statistics,
            self._problem,
            self.parts,
            BLOCK_DIM=block_dim(c),
        )

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, output: Tensor, statistics: Statistics
    ) -> None:
        from implementations.fused.cuda.kernels.forward import forward_kernel

        c, tiles, problem = self.config, self.tiles.forward, self._problem
        forward_kernel[(forward_programs(c, tiles, self.pack, self.parts),)](
            *(Operand.of(x) for x in (q, k, v, output)),
            statistics,
            problem._replace(score_scale=abs(problem.score_scale)),
            ceil_div(ceil_div(c.kv_seq_len, self.parts), tiles.keys) * tiles.keys,
            *self._descriptors(tiles, (k, v), tiles.keys),
            PACK=self.pack,
            NEGATED=c.scale < 0,
            **self._constants(tiles),
        )

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        output: Tensor,
        statistics: Statistics,
        d_output: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v from that of the output."""
        d_q, d_k, d_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        if self.is_empty:
            return d_q.zero_(), d_k.zero_(), d_v.zero_()
        known = Known(q, k, v, d_output, statistics, self.delta(output, d_output))
        self.key_gradients(known, d_k, d_v)
        self.query_gradients(known, d_q)
        return d_q, d_k, d_v

    def delta(self, output: Tensor, d_output: Tensor) -> Tensor:
        """Sums of output times its gradient over D, ``[B, H, L]`` float32."""
        from implementations.fused.cuda.kernels.backward import delta_kernel

        c = self.config
        delta = torch.empty(output.shape[:3], dtype=torch.float32, device=output.device)
        delta_kernel[(c.batch_size * c.num_heads * ceil_div(c.seq_len, _DELTA_ROWS),)](
            Operand.of(output),
            Operand.of(d_output),
            delta,
            self._problem,
            BLOCK_QUERIES=_DELTA_ROWS,
            BLOCK_DIM=block_dim(c),
        )
        return delta

    def key_gradients(self, known: Known, d_k: Tensor, d_v: Tensor) -> None:
        """Fill d_k and d_v."""
        from implementations.fused.cuda.kernels.backward import key_gradients_kernel

        c, tiles = self.config, self.tiles.key_gradients
        programs = c.num_kv_heads * ceil_div(c.kv_seq_len, tiles.keys)
        loads = self._descriptors(tiles, (known.q, known.d_output), tiles.queries)
        self._sum_gradients(key_gradients_kernel, programs, known, (d_k, d_v), loads, tiles)

    def query_gradients(self, known: Known, d_q: Tensor) -> None:
        """Fill d_q."""
        from implementations.fused.cuda.kernels.backward import query_gradients_kernel

        c, tiles = self.config, self.tiles.query_gradients
        programs = c.num_heads * ceil_div(c.seq_len, tiles.queries)
        loads = self._descriptors(tiles, (known.k, known.v), tiles.keys)
        self._sum_gradients(query_gradients_kernel, programs, known, (d_q,), loads, tiles)

    def _sum_gradients(
        self,
        kernel: Any,
        programs: int,
        known: Known,
        results: tuple[Tensor, ...],
        loads: tuple[Any, Any],
        tiles: Tiles,
    ) -> None:
        """Launch so many programs for each batch entry."""
        read = (known.q, known.k, known.v, known.d_output)
        kernel[(self.config.batch_size * programs,)](
            *(Operand.of(x) for x in (*read, *results)),
            known.statistics,
            known.delta,
            self._problem,
            *loads,
            **self._constants(tiles),
        )

    def _descriptors(
        self, tiles: Tiles, tensors: tuple[Tensor, Tensor], rows: int
    ) -> tuple[Any, Any]:
        """Of the tensors that a loop walks through, so many rows at a time; else None."""
        if not tiles.by_descriptors:
            return None, None
        return descriptors(tensors, rows, block_dim(self.config))

    def _constants(self, tiles: Tiles) -> dict[str, Any]:
        return {
            "BLOCK_QUERIES": tiles.queries,
            "BLOCK_KEYS": tiles.keys,
            "BLOCK_DIM": block_dim(self.config),
            "PRECISION": self.precision,
            "num_warps": tiles.warps,
            "num_stages": tiles.stages,
        }

    @cached_property
    def _problem(self) -> Problem:
        return Problem.of(self.config, self.masks)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch."""
        c = self.config
        return 0 in (c.batch_size, c.seq_len, c.kv_seq_len)


def forward_programs(c: AttentionConfig, tiles: Tiles, pack: int, parts: int) -> int:
    """Programs of the forward pass: all on one axis, for the others end at 65535."""
    blocks = ceil_div(c.seq_len * pack, tiles.queries)
    return blocks * (c.num_heads // pack) * c.batch_size * parts


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
