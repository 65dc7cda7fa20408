"""torch.nn.functional.scaled_dot_product_attention: by its own choice, or with a forced backend.

``sdpa`` lets torch choose and reports the choice; each backend is an implementation of its own. A
forced backend never falls back: torch raises where it has no kernel, and a tiny real call of the
same kind finds that out beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttendWithLse,
    AttentionImplementation,
    AttentionInputs,
    Case,
    Inputs,
    MaskForm,
    MaskTensors,
    dense_bias,
    is_plain_causal,
)
from implementations.sdpa.backends import Only, short_name
from implementations.sdpa.probe import Kind, missing_kernel

__all__ = ["Sdpa", "SdpaCudnn", "SdpaEfficient", "SdpaFlash", "SdpaMath"]


_NAN_IS_LOST = {
    "check_nan_in_nan_out[cpu]": "the CPU's flash kernel gives 0 for some NaN queries: "
    "https://github.com/pytorch/pytorch/issues/141128"
}


class Sdpa(AttentionImplementation):
    """SDPA with the backend that torch chooses; ``kernel`` says which one that was."""

    name = "sdpa"
    mask_features = ALL_MASK_FEATURES
    native_grouped_heads = True
    dropout = True
    known_failures: ClassVar[Mapping[str, str]] = _NAN_IS_LOST

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        scale, dropout_p = case.config.scale, case.config.dropout_p
        is_causal = is_plain_causal(case.config)
        enable_gqa = self.native_grouped_heads and case.config.group_size > 1
        bias = _bias(case, masks)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(
                q, k, v, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )

        return attend

    def mask_form(self, case: Case) -> MaskForm:
        return MaskForm.FLAG if is_plain_causal(case.config) else case.config.mask.form_as_tensor

    def kernel(self, case: Case, inputs: Inputs) -> str:
        q, k, v = (x.requires_grad_(case.mode.is_training) for x in _attended(case, inputs))
        choice: int = torch._fused_sdp_choice(
            q,
            k,
            v,
            _bias(case, inputs.masks),
            case.config.dropout_p,
            is_plain_causal(case.config),
            scale=case.config.scale,
            enable_gqa=case.config.group_size > 1,
        )
        return f"sdpa:{short_name(choice)}"


class _Forced(Sdpa):
    """SDPA with every backend but one switched off."""

    backend: ClassVar[SDPBackend]
    known_failures: ClassVar[Mapping[str, str]] = {}

    def extra_reasons(self, case: Case) -> Iterable[str]:
        if case.device in self.devices:
            yield from missing_kernel(Kind.of(self.backend, case, self.native_grouped_heads))

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        attend = super().make_attend(case, masks)
        only = Only(self.backend)

        def forced(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = _unit_stride(q), _unit_stride(k), _unit_stride(v)
            with only:
                return attend(q, k, v)

        return forced

    def kernel(self, case: Case, inputs: Inputs) -> str:
        return f"sdpa:{short_name(self.backend)}"


class SdpaMath(_Forced):
    """Torch's composite of plain operations; it copies keys and values of grouped heads itself."""

    name = "sdpa_math"
    backend = SDPBackend.MATH

    def notes(self, case: Case) -> tuple[str, ...]:
        return ("grouped heads expanded by torch",) if case.config.group_size > 1 else ()


class SdpaFlash(_Forced):
    """FlashAttention: torch's own kernel on the CPU, FlashAttention 2 on CUDA."""

    name = "sdpa_flash"
    backend = SDPBackend.FLASH_ATTENTION
    known_failures: ClassVar[Mapping[str, str]] = _NAN_IS_LOST

    def make_attend_with_lse(self, case: Case, masks: MaskTensors) -> AttendWithLse | None:
        """From the operator that SDPA calls on the CPU, where every query has a key: of one that
        has none, torch 2.13 says 0 instead of -inf.
        """
        bias = _bias(case, masks)
        if case.device != "cpu" or not case.config.kv_seq_len or _has_rows_without_keys(bias):
            return None
        is_causal, scale = is_plain_causal(case.config), case.config.scale

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            q, k, v = _unit_stride(q), _unit_stride(k), _unit_stride(v)
            output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale
            )
            return output, lse

        return attend


class SdpaEfficient(_Forced):
    """The memory-efficient kernel that came from xformers' CUTLASS one."""

    name = "sdpa_efficient"
    devices = frozenset({"cuda"})
    native_grouped_heads = False
    backend = SDPBackend.EFFICIENT_ATTENTION


class SdpaCudnn(_Forced):
    """cuDNN's fused attention."""

    name = "sdpa_cudnn"
    devices = frozenset({"cuda"})
    backend = SDPBackend.CUDNN_ATTENTION


def _bias(case: Case, masks: MaskTensors) -> Tensor | None:
    """One dense bias for everything but the plain causal triangle.

    Torch's backends disagree on ``is_causal`` together with a mask (pytorch#187801), and turn a
    boolean mask into a bias on each call.
    """
    return None if is_plain_causal(case.config) else dense_bias(case.config, masks, case.device)


def _has_rows_without_keys(bias: Tensor | None) -> bool:
    return bias is not None and bool(bias.isneginf().all(dim=-1).any())


def _unit_stride(x: Tensor) -> Tensor:
    """Fused backends take no head dimension whose stride is not 1; all else passes untouched."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _attended(case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as torch's choice sees them: dtype, shape and strides count, values don't."""
    if isinstance(inputs, AttentionInputs):
        return inputs.q.detach(), inputs.k.detach(), inputs.v.detach()
    c = case.config
    q = inputs.x.new_empty(c.batch_size, c.seq_len, c.num_heads, c.head_dim)
    kv = inputs.x.new_empty(c.batch_size, c.kv_seq_len, c.num_kv_heads, c.head_dim)
    return q.transpose(1, 2), kv.transpose(1, 2), kv.clone().transpose(1, 2)
