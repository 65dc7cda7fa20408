"""A correct attention in tiles of keys, with a method at each place where kernels go wrong.

The planted defects replace one of these methods each, so that they differ from a right kernel in
nothing else.

Shapes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len, N keys of a
tile.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from harness.attention import AttentionConfig, Case, DType
from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttendWithLse,
    AttentionImplementation,
    Contract,
    MaskTensors,
    dense_keep,
)

TILE = 32


class Sound(AttentionImplementation):
    """Online softmax over tiles of keys, everything inside in float32."""

    name = "sound"
    mask_features = ALL_MASK_FEATURES
    native_grouped_heads = True
    # Where a defect is larger than what rounding leaves unseen; all dtypes unless said.
    seen_in: ClassVar[frozenset[DType]] = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        return lambda q, k, v: self.attend(case.config, masks, q, k, v)

    def make_attend_with_lse(self, case: Case, masks: MaskTensors) -> AttendWithLse:
        return lambda q, k, v: self.attend_with_lse(case.config, masks, q, k, v)

    def attend(
        self, c: AttentionConfig, masks: MaskTensors, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        return self.attend_with_lse(c, masks, q, k, v)[0]

    def attend_with_lse(
        self, c: AttentionConfig, masks: MaskTensors, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp, from operands of any strides."""
        wide = torch.promote_types(q.dtype, torch.float32)
        heads = self.kv_heads(c)
        scaled, k, v = self.scaled(q.to(wide), c), k.to(wide)[:, heads], v.to(wide)[:, heads]
        keep, bias = self.keep(c, masks), self.bias(c, masks)
        largest = scaled.new_full((*q.shape[:3], 1), self.first_maximum)
        total = torch.zeros_like(largest)
        weighted = torch.zeros_like(scaled)
        for keys in self.tiles(c.kv_seq_len):
            scores = self.scores(scaled @ k[:, :, keys].mT, c, q.dtype)
            if bias is not None:
                scores = self.with_bias(scores, _columns(bias, keys), c)
            if keep is not None:
                scores = self.excluded(scores, _columns(keep, keys))
            found = self.maximum(largest, scores)
            shift = torch.where(torch.isneginf(found), 0.0, found).detach()
            weights = self.weights((scores - shift).exp(), q.dtype)
            kept = self.kept((largest - shift).exp())
            total = total * kept + weights.sum(dim=-1, keepdim=True)
            weighted = self.accumulated(weighted * kept + weights @ v[:, :, keys], q.dtype)
            largest = found.detach()
        output = self.stored(self.normalised(weighted, total), q.dtype)
        return output, self.lse(largest, total).squeeze(-1)

    # The places, in the order in which a call comes by them.
    first_maximum: ClassVar[float] = -torch.inf

    def kv_heads(self, c: AttentionConfig) -> Tensor:
        """``[H]``, the key/value head of each query head."""
        return torch.arange(c.num_heads) // c.group_size

    def scaled(self, q: Tensor, c: AttentionConfig) -> Tensor:
        return q * c.scale

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        return dense_keep(c, masks, "cpu")

    def bias(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        bias = masks.bias
        return bias if bias is None or bias.dim() == 4 else bias[None, None]

    def tiles(self, num_keys: int) -> list[slice]:
        return [slice(at, min(at + TILE, num_keys)) for at in range(0, num_keys, TILE)]

    def scores(self, scores: Tensor, c: AttentionConfig, dtype: torch.dtype) -> Tensor:
        return scores

    def with_bias(self, scores: Tensor, bias: Tensor, c: AttentionConfig) -> Tensor:
        return scores + bias

    def excluded(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(~keep, -torch.inf)

    def maximum(self, largest: Tensor, scores: Tensor) -> Tensor:
        return torch.maximum(largest, scores.amax(dim=-1, keepdim=True))

    def weights(self, weights: Tensor, dtype: torch.dtype) -> Tensor:
        return weights

    def kept(self, factor: Tensor) -> Tensor:
        """By how much earlier tiles shrink when a larger maximum turns up."""
        return factor

    def accumulated(self, weighted: Tensor, dtype: torch.dtype) -> Tensor:
        return weighted

    def normalised(self, weighted: Tensor, total: Tensor) -> Tensor:
        return weighted / total.masked_fill(total == 0, 1.0)

    def stored(self, output: Tensor, dtype: torch.dtype) -> Tensor:
        return output.to(dtype)

    def lse(self, largest: Tensor, total: Tensor) -> Tensor:
        """Log-sum-exp from the running maximum and the sum relative to it."""
        return largest + total.detach().log()


class SoundMaterialised(Sound):
    """The whole score matrix in the inputs' dtype, as textbooks have it."""

    name = "sound_materialised"

    def contract(self, case: Case) -> Contract:
        return Contract.MATERIALISED

    def tiles(self, num_keys: int) -> list[slice]:
        return [slice(0, num_keys)] if num_keys else []

    def scores(self, scores: Tensor, c: AttentionConfig, dtype: torch.dtype) -> Tensor:
        return scores.to(dtype).to(scores.dtype)

    def weights(self, weights: Tensor, dtype: torch.dtype) -> Tensor:
        return weights.to(dtype).to(weights.dtype)


def _columns(mask: Tensor, keys: slice) -> Tensor:
    return mask if mask.shape[-1] == 1 else mask[..., keys]


def rounded_to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to a dtype and widened again; float32 stands for bfloat16 here."""
    low = torch.bfloat16 if dtype is torch.float32 else dtype
    return tensor.to(low).to(tensor.dtype)
