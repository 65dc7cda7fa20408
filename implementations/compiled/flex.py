"""torch's flex_attention, compiled: the mask is a block mask, a bias is a score modification.

Shapes: B batch_size, H num_heads, L seq_len, S kv_seq_len.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttentionConfig,
    AttentionImplementation,
    Case,
    DType,
    Inputs,
    MaskForm,
    MaskTensors,
)
from implementations.compiled.region import Region, missing_compiler

MaskMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Flex(AttentionImplementation):
    """flex_attention with everything that excludes pairs in its block mask."""

    name = "flex"
    dtypes = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
    mask_features = ALL_MASK_FEATURES
    native_grouped_heads = True

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def extra_reasons(self, case: Case) -> Iterable[str]:
        yield from missing_compiler(case.device)
        # An empty length ends the process with a floating-point exception (torch 2.13, CPU).
        for name in ("seq_len", "kv_seq_len"):
            if getattr(case.config, name) < 1:
                yield f"{name}={getattr(case.config, name)} (at least 1)"
        if case.device == "cpu" and case.mode.is_training:
            yield f"mode={case.mode} (only forward: flex_attention has no backward on the CPU)"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        c = case.config
        block_mask, score_mod = make_block_mask(case, masks), make_score_mod(masks)
        call, grouped = self._region(case).call, c.group_size > 1
        return lambda q, k, v: call(q, k, v, score_mod, block_mask, c.scale, grouped)

    def _region(self, case: Case) -> Region:
        return self._regions.setdefault(case.key, Region(_attention))

    def kernel(self, case: Case, inputs: Inputs) -> str:
        if self._region(case).graphs == 0:
            self.prepare(case, inputs)()
        return "inductor:flex_attention" if self._region(case).graphs else "eager"

    def mask_form(self, case: Case) -> MaskForm:
        return case.config.mask.form_by_parts

    def notes(self, case: Case) -> tuple[str, ...]:
        return (*super().notes(case), *self._region(case).findings)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: Any,
    block_mask: Any,
    scale: float,
    enable_gqa: bool,
) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    output = flex_attention(q, k, v, score_mod, block_mask, scale, enable_gqa)
    assert isinstance(output, Tensor)
    return output


def make_block_mask(case: Case, masks: MaskTensors) -> Any:
    """The BlockMask of all that excludes pairs, a bias of -inf included; None for nothing."""
    from torch.nn.attention.flex_attention import and_masks, create_block_mask

    c = case.config
    parts = [*_position_mods(c), *_tensor_mods(masks)]
    if not parts:
        return None
    per_batch = masks.key_padding is not None or _varies(masks, 0)
    return create_block_mask(
        and_masks(*parts),
        c.batch_size if per_batch else None,
        c.num_heads if _varies(masks, 1) else None,
        c.seq_len,
        c.kv_seq_len,
        device=case.device,
    )


def _varies(masks: MaskTensors, dimension: int) -> bool:
    given = (mask for mask in (masks.keep, masks.bias) if mask is not None and mask.dim() == 4)
    return any(mask.shape[dimension] > 1 for mask in given)


def _position_mods(c: AttentionConfig) -> Iterable[MaskMod]:
    offset, window = c.causal_offset, c.mask.window
    if c.is_causal:
        yield lambda b, h, i, j: j <= i + offset
    if window is not None:
        yield lambda b, h, i, j: (j - i - offset).abs() < window


def _tensor_mods(masks: MaskTensors) -> Iterable[MaskMod]:
    if masks.key_padding is not None:
        padding = masks.key_padding
        yield lambda b, h, i, j: padding[b, j]
    if masks.keep is not None:
        yield partial(_entry, _in_four_dimensions(masks.keep))
    if masks.bias is not None:
        yield partial(_entry, _in_four_dimensions(masks.bias).isneginf().logical_not())


def make_score_mod(masks: MaskTensors) -> Any:
    """Adds the bias to a scaled score; None where there is no bias."""
    if masks.bias is None:
        return None
    finite = _in_four_dimensions(masks.bias)
    finite = finite.masked_fill(finite.isneginf(), 0.0)
    return lambda score, b, h, i, j: score + _entry(finite, b, h, i, j)


def _in_four_dimensions(mask: Tensor) -> Tensor:
    return mask if mask.dim() == 4 else mask[None, None]


def _entry(mask: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """``mask[b, h, i, j]`` where the mask broadcasts to ``[B, H, L, S]``."""
    at = (b, h, i, j)
    index = tuple(x if size > 1 else x * 0 for x, size in zip(at, mask.shape, strict=True))
    return mask[index]
