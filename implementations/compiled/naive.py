"""torch.compile of naive attention: does the compiler find the fusion?

Shapes: B batch_size, H num_heads, D head_dim, L seq_len, S kv_seq_len.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttentionImplementation,
    Case,
    Contract,
    Inputs,
    MaskForm,
    MaskTensors,
    dense_bias,
    products_are_tf32,
)
from implementations.compiled.region import Region, attention_operator, missing_compiler


class CompiledNaive(AttentionImplementation):
    """softmax(scale Q K^T + bias) V as one compiled graph; ``kernel`` says what became of it."""

    name = "compiled_naive"
    mask_features = ALL_MASK_FEATURES

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def extra_reasons(self, case: Case) -> Iterable[str]:
        return missing_compiler(case.device)

    def mask_form(self, case: Case) -> MaskForm:
        return case.config.mask.form_as_tensor

    def contract(self, case: Case) -> Contract:
        return Contract.TF32 if products_are_tf32(case) else Contract.MATERIALISED

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        c = case.config
        bias = dense_bias(c, masks, case.device)
        excluded = rows = None
        if bias is not None:
            excluded = torch.isneginf(bias)
            rows = excluded.expand(*bias.shape[:-1], c.kv_seq_len).all(dim=-1, keepdim=True)
            rows = rows if bool(rows.any()) else None
            bias = None if masks.bias is None else bias.masked_fill(excluded, 0.0)
        call = self._region(case).call
        return lambda q, k, v: call(q, k, v, c.scale, bias, excluded, rows)

    def _region(self, case: Case) -> Region:
        return self._regions.setdefault(case.key, Region(_attention))

    def kernel(self, case: Case, inputs: Inputs) -> str:
        operator = attention_operator(self.prepare(case, inputs), case)
        if self._region(case).graphs == 0:
            return "eager"
        return f"inductor:{operator}" if operator else "inductor:generated loops"

    def notes(self, case: Case) -> tuple[str, ...]:
        return (*super().notes(case), *self._region(case).findings)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    bias: Tensor | None,
    excluded: Tensor | None,
    rows: Tensor | None,
) -> Tensor:
    """``[B, H, L, D]``; the order of scale and product is the one that inductor's patterns know.

    Except in float16, whose scores overflow unless the scale comes first.
    """
    if q.dtype == torch.float16:
        scores = (q * scale) @ k.transpose(-2, -1)
    else:
        scores = q @ k.transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias
    if excluded is not None:
        scores = scores.masked_fill(excluded, float("-inf"))
    if rows is not None:
        scores = scores.masked_fill(rows, 0.0)
    output = torch.softmax(scores, dim=-1) @ v
    return output if rows is None else output.masked_fill(rows, 0.0)
