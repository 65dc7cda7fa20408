"""Memory-efficient attention in plain torch: chunks of queries and keys, online softmax.

Rabe & Staats 2021 ("Self-attention Does Not Need O(n^2) Memory"), running maximum of Milakov &
Gimelshein 2018. The score matrix exists one chunk at a time; in training each query chunk is
checkpointed, so that the backward pass recomputes it. Products, softmax and sums are in float32
(float64 for float64 inputs).

Shapes: B batch_size, H num_heads, G num_kv_heads, R query heads per key/value head, D head_dim,
L seq_len, S kv_seq_len, M rows of a query chunk, N keys of a key chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttendWithLse,
    AttentionConfig,
    AttentionImplementation,
    Case,
    Inputs,
    InvalidValueError,
    MaskForm,
    MaskTensors,
)


class Chunked(AttentionImplementation):
    """Attention without the score matrix.

    Args:
        query_chunk: Queries in a chunk.
        key_chunk: Keys in a chunk.
    """

    name = "chunked"
    mask_features = ALL_MASK_FEATURES
    native_grouped_heads = True
    dropout = True

    def __init__(self, query_chunk: int = 128, key_chunk: int = 512) -> None:
        for argument, value in {"query_chunk": query_chunk, "key_chunk": key_chunk}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidValueError(argument, "a whole number of at least 1", value)
        self.query_chunk = query_chunk
        self.key_chunk = key_chunk

    def kernel(self, case: Case, inputs: Inputs) -> str:
        return f"chunked {self.query_chunk}x{self.key_chunk}"

    def mask_form(self, case: Case) -> MaskForm:
        return case.config.mask.form_by_parts

    def notes(self, case: Case) -> tuple[str, ...]:
        recomputes = "the backward pass recomputes each query chunk"
        return (recomputes,) if case.mode.has_gradients else ()

    def make_attend_with_lse(self, case: Case, masks: MaskTensors) -> AttendWithLse:
        problem = _Problem(case.config, masks, self.key_chunk)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            starts = range(0, max(q.shape[2], 1), self.query_chunk)
            chunks = (
                _with_lse(problem, q[:, :, start : start + self.query_chunk], k, v, start)
                for start in starts
            )
            outputs, sums = zip(*chunks, strict=True)
            return torch.cat(outputs, dim=2), torch.cat(sums, dim=2)

        return attend

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        problem = _Problem(case.config, masks, self.key_chunk)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            in_graph = q.requires_grad or k.requires_grad or v.requires_grad
            recorded = torch.is_grad_enabled() and in_graph
            parts = []
            # At least one chunk, so that an empty output is part of the graph too.
            for start in range(0, max(q.shape[2], 1), self.query_chunk):
                chunk = q[:, :, start : start + self.query_chunk]
                if recorded:
                    part = checkpoint(
                        _attend_rows, problem, chunk, k, v, start, use_reentrant=False
                    )
                else:
                    part = _attend_rows(problem, chunk, k, v, start)
                parts.append(part)
            return torch.cat(parts, dim=2)

        return attend


@dataclass(frozen=True)
class _Problem:
    """What stays the same for all chunks of one case."""

    config: AttentionConfig
    masks: MaskTensors
    key_chunk: int

    def visible_keys(self, start: int, stop: int) -> tuple[int, int]:
        """First key and the one after the last that queries start..stop-1 may see by position."""
        c = self.config
        first, last = start + c.causal_offset, stop - 1 + c.causal_offset
        low, high = 0, c.kv_seq_len
        if c.mask.window is not None:
            low = max(low, first - c.mask.window + 1)
            high = min(high, last + c.mask.window)
        if c.is_causal:
            high = min(high, last + 1)
        return low, high

    def excluded(self, rows: slice, keys: slice, device: torch.device) -> Tensor | None:
        """``[B or 1, H or 1, M or 1, N]``, True = the pair does not attend; None where all do."""
        parts = [self._excluded_by_position(rows, keys, device)]
        if self.masks.key_padding is not None:
            parts.append(~self.masks.key_padding[:, None, None, keys])
        if self.masks.keep is not None:
            parts.append(~_block(self.masks.keep, rows, keys))
        present = [part for part in parts if part is not None]
        combined = present[0] if present else None
        for part in present[1:]:
            combined = part if combined is None else combined | part
        return combined

    def _excluded_by_position(
        self, rows: slice, keys: slice, device: torch.device
    ) -> Tensor | None:
        c, window = self.config, self.config.mask.window
        first, last = rows.start + c.causal_offset, rows.stop - 1 + c.causal_offset
        past_diagonal = c.is_causal and keys.stop - 1 > first
        outside_window = window is not None and (
            keys.start <= last - window or keys.stop - 1 >= first + window
        )
        if not past_diagonal and not outside_window:
            return None
        position = torch.arange(first, last + 1, device=device)[:, None]
        distance = torch.arange(keys.start, keys.stop, device=device) - position
        excluded = distance > 0 if c.is_causal else torch.zeros_like(distance, dtype=torch.bool)
        if window is not None:
            excluded |= distance.abs() >= window
        return excluded[None, None]


def _block(mask: Tensor, rows: slice, keys: slice) -> Tensor:
    """The chunk of a mask that broadcasts to ``[B, H, L, S]``, as a 4-D view."""
    mask = mask if mask.dim() == 4 else mask[None, None]
    mask = mask if mask.shape[2] == 1 else mask[:, :, rows]
    return mask if mask.shape[3] == 1 else mask[:, :, :, keys]


def _attend_rows(p: _Problem, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
    """Attention of the query chunk q ``[B, H, M, D]`` that begins at row ``start``."""
    weighted, total, _ = _sum_rows(p, q, k, v, start)
    return _normalised(q, weighted, total)


def _with_lse(p: _Problem, q: Tensor, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """The same, and the chunk's log-sum-exp ``[B, H, M]``."""
    weighted, total, maximum = _sum_rows(p, q, k, v, start)
    return _normalised(q, weighted, total), (maximum + total.log()).view(q.shape[:3])


def _normalised(q: Tensor, weighted: Tensor, total: Tensor) -> Tensor:
    output = weighted / total.masked_fill(total == 0, 1.0)
    return output.view(q.shape).to(q.dtype)


def _sum_rows(
    p: _Problem, q: Tensor, k: Tensor, v: Tensor, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted values, sum of weights and maximum of the scores that they are relative to.

    The R query heads of a group are folded into the rows of one product, so that keys and values
    are never copied per head.
    """
    batch_size, num_heads, num_rows, head_dim = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    folded = (batch_size, k.shape[1], p.config.group_size * num_rows)
    scaled_q = q.to(exact).mul(p.config.scale).reshape(*folded, head_dim)
    maximum = scaled_q.new_full((*folded, 1), float("-inf"))
    total = torch.zeros_like(maximum)
    # Empty sums keep the output in the graph where no key is visible.
    weighted = torch.zeros_like(scaled_q) + (q[..., :0].sum() + k[..., :0].sum() + v[..., :0].sum())
    rows = slice(start, start + num_rows)
    low, high = p.visible_keys(rows.start, rows.stop)
    for first in range(low, high, p.key_chunk):
        keys = slice(first, min(first + p.key_chunk, high))
        scores = scaled_q @ k[:, :, keys].to(exact).transpose(-2, -1)
        per_head = scores.view(batch_size, num_heads, num_rows, scores.shape[-1])
        scores = _mask_scores(p, per_head, rows, keys).view_as(scores)
        # The maximum only guards against overflow: the result does not depend on it.
        new_maximum = torch.maximum(maximum, scores.detach().amax(dim=-1, keepdim=True))
        shift = new_maximum.masked_fill(torch.isneginf(new_maximum), 0.0)
        weights = torch.exp(scores - shift)
        kept = torch.exp(maximum - shift)
        total = total * kept + weights.sum(dim=-1, keepdim=True)
        if p.config.dropout_p:
            weights = F.dropout(weights, p.config.dropout_p)
        weighted = weighted * kept + weights @ v[:, :, keys].to(exact)
        maximum = new_maximum
    return weighted, total, maximum


def _mask_scores(p: _Problem, scores: Tensor, rows: slice, keys: slice) -> Tensor:
    """Scores ``[B, H, M, N]`` with the bias added and excluded pairs at -inf."""
    if p.masks.bias is not None:
        scores = scores + _block(p.masks.bias, rows, keys)
    excluded = p.excluded(rows, keys, scores.device)
    return scores if excluded is None else scores.masked_fill(excluded, float("-inf"))
