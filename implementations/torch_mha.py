"""torch.nn.MultiheadAttention: the layer that torch ships, fast path included.

Shapes: B batch_size, H num_heads, L seq_len, S kv_seq_len, E hidden_size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttentionImplementation,
    Case,
    Contract,
    Inputs,
    LayerInputs,
    LayerWeights,
    MaskForm,
    MaskTensors,
    Scope,
    UnsupportedCaseError,
    check_inputs,
    dense_bias,
    dense_keep,
    is_plain_causal,
    operators_run,
    products_are_tf32,
)

_NAN_WITHOUT_KEYS = (
    "NaN for queries without any key: https://github.com/pytorch/pytorch/issues/41508"
)


class TorchMha(AttentionImplementation):
    """The whole layer by nn.MultiheadAttention; ``kernel`` says whether it took its fast path."""

    name = "torch_mha"
    scopes = frozenset({Scope.LAYER})
    mask_features = ALL_MASK_FEATURES
    dropout = True
    known_failures: ClassVar[Mapping[str, str]] = {
        "check_masks": _NAN_WITHOUT_KEYS,
        "check_rows_without_keys": _NAN_WITHOUT_KEYS,
    }

    def extra_reasons(self, case: Case) -> Iterable[str]:
        c = case.config
        for argument in ("batch_size", "seq_len", "kv_seq_len"):
            if not getattr(c, argument) and not c.mask.is_none:
                yield f"{argument}=0 (at least 1 with mask={c.mask})"
        if c.num_kv_heads != c.num_heads:
            yield f"num_kv_heads={c.num_kv_heads} (only num_heads={c.num_heads})"
        if c.num_heads * c.head_dim != c.hidden_size:
            yield f"head_dim={c.head_dim} (only hidden_size / num_heads)"
        if not c.has_default_scale:
            yield f"scale={c.scale:g} (only 1/sqrt(head_dim))"

    def contract(self, case: Case) -> Contract:
        if products_are_tf32(case):
            return Contract.TF32
        return Contract.MATERIALISED if _may_take_fast_path(case) else Contract.FUSED

    def mask_form(self, case: Case) -> MaskForm:
        """The tensor of a plain causal mask is dropped for the flag, but not on the fast path."""
        c = case.config
        is_self_attention = c.seq_len == c.kv_seq_len
        on_fast_path = _may_take_fast_path(case) and is_self_attention
        dropped = is_plain_causal(c) and not on_fast_path
        return MaskForm.FLAG if dropped else c.mask.form_as_tensor

    def notes(self, case: Case) -> tuple[str, ...]:
        if _may_take_fast_path(case):
            return ("zero biases added: torch has no fast path without biases",)
        return ()

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        raise UnsupportedCaseError(f"scope={case.scope} (only layer)")

    def prepare(self, case: Case, inputs: Inputs) -> Callable[[], Tensor]:
        check_inputs(case, inputs)
        if not isinstance(inputs, LayerInputs):
            raise UnsupportedCaseError(f"scope={case.scope} (only layer)")
        module = _module(case, inputs.weights)
        arguments = {"need_weights": False, **_masks(case, inputs.masks)._asdict()}
        x, x_kv = inputs.x, inputs.x_kv

        def layer() -> Tensor:
            output: Tensor = module(x, x_kv, x_kv, **arguments)[0]
            return output

        return layer

    def kernel(self, case: Case, inputs: Inputs) -> str:
        """The attention operator that a call runs."""
        call = self.prepare(case, inputs)
        with torch.set_grad_enabled(case.mode.is_training):
            names = operators_run(call, case.device)
        ran = next((name for name in names if "attention" in name and "::_" in name), "composite")
        return f"torch_mha:{ran}"


class _Masks(NamedTuple):
    """Arguments of nn.MultiheadAttention; True = the pair does not attend, unlike ours."""

    attn_mask: Tensor | None = None
    key_padding_mask: Tensor | None = None
    is_causal: bool = False


def _masks(case: Case, masks: MaskTensors) -> _Masks:
    c = case.config
    if c.mask.features == {"key_padding"}:
        assert masks.key_padding is not None
        return _Masks(key_padding_mask=~masks.key_padding)
    if masks.bias is not None:
        bias = dense_bias(c, masks, case.device)
        return _Masks(None if bias is None else _in_three_dimensions(case, bias))
    keep = dense_keep(c, masks, case.device)
    excluded = None if keep is None else _in_three_dimensions(case, ~keep)
    return _Masks(excluded, is_causal=is_plain_causal(c))


def _in_three_dimensions(case: Case, mask: Tensor) -> Tensor:
    """From ``[B or 1, H or 1, L or 1, S]`` to ``[L, S]`` where that says all, else ``[B * H, L,
    S]``.
    """
    c = case.config
    if mask.shape[:2] == (1, 1):
        return mask[0, 0].expand(c.seq_len, c.kv_seq_len)
    full = mask.expand(c.batch_size, c.num_heads, c.seq_len, c.kv_seq_len)
    return full.reshape(c.batch_size * c.num_heads, c.seq_len, c.kv_seq_len)


def _may_take_fast_path(case: Case) -> bool:
    """Conditions of torch's fast path that the case decides; cross-attention is seen by tensors."""
    c = case.config
    return not case.mode.is_training and c.num_heads % 2 == 0 and c.mask.bias is None


def _module(case: Case, weights: LayerWeights) -> nn.MultiheadAttention:
    """The module around the given tensors themselves, so that gradients reach them."""
    c = case.config
    module = nn.MultiheadAttention(
        c.hidden_size, c.num_heads, c.dropout_p, bias=False, batch_first=True, device="meta"
    )
    module.train(case.mode.is_training)
    _replace(module, "in_proj_weight", weights.w_qkv)
    _replace(module.out_proj, "weight", weights.w_o)
    if _may_take_fast_path(case):
        _replace(module, "in_proj_bias", weights.w_o.new_zeros(3 * c.hidden_size))
        _replace(module.out_proj, "bias", weights.w_o.new_zeros(c.hidden_size))
    return module


def _replace(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a plain tensor where the module has a parameter."""
    del module._parameters[name]
    setattr(module, name, tensor)
