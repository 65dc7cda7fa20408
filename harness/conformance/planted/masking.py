"""Planted defects of masks: alignment, polarity, combination, what a masked pair still does."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.attention import AttentionConfig, Causal
from harness.conformance.planted.sound import Sound
from harness.interface import MaskTensors, dense_keep


class TopLeftForBottomRight(Sound):
    """top-left alignment where bottom-right was named"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        return super().keep(_aligned(c, Causal.BOTTOM_RIGHT, Causal.TOP_LEFT), masks)


class BottomRightForTopLeft(Sound):
    """bottom-right alignment where top-left was named"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        return super().keep(_aligned(c, Causal.TOP_LEFT, Causal.BOTTOM_RIGHT), masks)


def _aligned(c: AttentionConfig, named: Causal, done: Causal) -> AttentionConfig:
    if c.mask.causal is not named:
        return c
    return replace(c, mask=replace(c.mask, causal=done))


class SeesNextKey(Sound):
    """causal triangle one key too wide"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        return _shifted(super().keep(c, masks), c, 1)


class MissesOwnKey(Sound):
    """causal triangle without its diagonal"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        return _shifted(super().keep(c, masks), c, -1)


def _shifted(keep: Tensor | None, c: AttentionConfig, by: int) -> Tensor | None:
    if keep is None or not c.is_causal:
        return keep
    rows = torch.arange(c.seq_len)[:, None] + c.causal_offset
    triangle = torch.arange(c.kv_seq_len) <= rows + by
    return triangle[None, None] if by > 0 else keep & triangle


class WindowOneTooWide(Sound):
    """window of one key more"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        if c.mask.window is not None:
            c = replace(c, mask=replace(c.mask, window=c.mask.window + 1))
        return super().keep(c, masks)


class IgnoresWindow(Sound):
    """no window"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        return super().keep(replace(c, mask=replace(c.mask, window=None)), masks)


class IgnoresPadding(Sound):
    """key padding ignored where the mask is causal too"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        return super().keep(c, replace(masks, key_padding=None) if c.is_causal else masks)


class PaddingOfFirstEntry(Sound):
    """the first batch entry's padding for all"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        if masks.key_padding is not None:
            masks = replace(masks, key_padding=masks.key_padding[:1])
        return super().keep(c, masks)


class MaskPolarity(Sound):
    """True = masked in a keep-mask"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        if masks.keep is not None:
            masks = replace(masks, keep=~masks.keep)
        return super().keep(c, masks)


class MasksByOr(Sound):
    """causal triangle and keep-mask joined by OR"""

    def keep(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        if masks.keep is None or not c.is_causal:
            return super().keep(c, masks)
        triangle = dense_keep(c, replace(masks, keep=None), "cpu")
        given = masks.keep if masks.keep.dim() == 4 else masks.keep[None, None]
        return given if triangle is None else triangle | given


class MasksByProduct(Sound):
    """masked scores set to 0 instead of left out"""

    def excluded(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores * keep


class MasksByLargeNumber(Sound):
    """masked scores set to -10000: a row without keys becomes a mean"""

    def excluded(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(~keep, -1e4)


class MasksBySmallNumber(Sound):
    """masked scores lowered by 30: garbage below a mask still counts"""

    def excluded(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores - 30.0 * ~keep


class NanForEmptyRows(Sound):
    """0 / 0 in rows without keys"""

    def normalised(self, weighted: Tensor, total: Tensor) -> Tensor:
        return weighted / total


class BiasBeforeScale(Sound):
    """bias added before the scale"""

    def with_bias(self, scores: Tensor, bias: Tensor, c: AttentionConfig) -> Tensor:
        return scores + bias * c.scale


class BiasOfFirstHead(Sound):
    """the first head's bias for all heads"""

    def bias(self, c: AttentionConfig, masks: MaskTensors) -> Tensor | None:
        bias = super().bias(c, masks)
        return None if bias is None else bias[:, :1]


DEFECTS = (
    TopLeftForBottomRight,
    BottomRightForTopLeft,
    SeesNextKey,
    MissesOwnKey,
    WindowOneTooWide,
    IgnoresWindow,
    IgnoresPadding,
    PaddingOfFirstEntry,
    MaskPolarity,
    MasksByOr,
    MasksByProduct,
    MasksByLargeNumber,
    MasksBySmallNumber,
    NanForEmptyRows,
    BiasBeforeScale,
    BiasOfFirstHead,
)
