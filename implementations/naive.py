"""Attention as the textbook writes it: the whole score matrix, softmax, the product with V.

Shapes: B batch_size, H num_heads, D head_dim, L seq_len, S kv_seq_len.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttentionConfig,
    AttentionImplementation,
    Case,
    Contract,
    MaskForm,
    MaskTensors,
    Mode,
    Scope,
    dense_keep,
    products_are_tf32,
)


@dataclass(frozen=True)
class _Exclusion:
    """A mask as naive attention applies it, made once and broadcastable to ``[B, H, L, S]``.

    Args:
        bias: Finite additive bias.
        pairs: True = the pair does not attend; never a whole row.
        rows: ``[..., L, 1]``, True = the query attends to nothing.
    """

    bias: Tensor | None = None
    pairs: Tensor | None = None
    rows: Tensor | None = None


class Naive(AttentionImplementation):
    """softmax(scale Q K^T + bias) V with scores and probabilities rounded to the inputs' dtype."""

    name = "naive"
    mask_features = ALL_MASK_FEATURES
    dropout = True

    def mask_form(self, case: Case) -> MaskForm:
        return case.config.mask.form_as_tensor

    def contract(self, case: Case) -> Contract:
        return Contract.TF32 if products_are_tf32(case) else Contract.MATERIALISED

    def expected_alloc_bytes(self, case: Case) -> int | None:
        """Scores and probabilities side by side, then the output; forward attention only."""
        if case.mode is not Mode.FORWARD or case.scope is not Scope.ATTENTION:
            return None
        c = case.config
        rows = c.batch_size * c.num_heads * c.seq_len
        return rows * (2 * c.kv_seq_len + c.head_dim) * c.dtype.itemsize_bytes

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        scale, dropout_p = case.config.scale, case.config.dropout_p
        excluded = _exclusion(case.config, masks, case.device)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # Scaled before the product: the scores of large float16 inputs overflow otherwise.
            scores = (q * scale) @ k.transpose(-2, -1)
            probabilities = torch.softmax(_mask_scores(scores, excluded), dim=-1)
            if dropout_p:
                probabilities = F.dropout(probabilities, dropout_p)
            output = probabilities @ v
            return output if excluded.rows is None else output.masked_fill(excluded.rows, 0.0)

        return attend


def _mask_scores(scores: Tensor, excluded: _Exclusion) -> Tensor:
    """Add the bias and exclude pairs, in place (no backward of a product needs its output).

    Filling, not adding -inf: an overflowed score of an excluded pair would become NaN.
    """
    if excluded.bias is not None:
        scores += excluded.bias
    if excluded.pairs is not None:
        scores.masked_fill_(excluded.pairs, float("-inf"))
    if excluded.rows is not None:
        # Fixed before the softmax, so that gradients stay finite as well.
        scores.masked_fill_(excluded.rows, 0.0)
    return scores


def _exclusion(c: AttentionConfig, masks: MaskTensors, device: str) -> _Exclusion:
    keep = dense_keep(c, masks, device)
    pairs = None if keep is None else ~keep
    bias = masks.bias if masks.bias is None or masks.bias.dim() == 4 else masks.bias[None, None]
    if bias is not None:
        excluded_by_bias = torch.isneginf(bias)
        if bool(excluded_by_bias.any()):
            bias = bias.masked_fill(excluded_by_bias, 0.0)
            pairs = excluded_by_bias if pairs is None else pairs | excluded_by_bias
    if pairs is None:
        return _Exclusion(bias)
    rows = pairs.expand(*pairs.shape[:-1], c.kv_seq_len).all(dim=-1, keepdim=True)
    return _Exclusion(bias, pairs & ~rows, rows if bool(rows.any()) else None)
