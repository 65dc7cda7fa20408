"""The tensors that an implementation gets, and the checks that every one of them has passed.

Shapes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len,
E hidden_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from harness.attention import AttentionConfig, Case, Causal, DType, Scope
from harness.errors import InvalidValueError


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of that name."""
    named: torch.dtype = getattr(torch, dtype.value)
    return named


@dataclass(frozen=True)
class MaskTensors:
    """The parts of a mask that need tensors; causal triangle and window follow from the config.

    Args:
        key_padding: ``[B, S]`` bool, True = attend.
        keep: ``[L, S]`` or 4-D broadcastable to ``[B, H, L, S]``, bool, True = attend.
        bias: ``[L, S]`` or 4-D broadcastable to ``[B, H, L, S]``, the query's dtype, added to the
            scaled scores; -inf excludes a pair.
        declared_bias: Set where a bias of only zeros and ones is meant as such; without it such a
            bias is refused, since it is nearly always a keep-mask in the wrong dtype.
    """

    key_padding: Tensor | None = None
    keep: Tensor | None = None
    bias: Tensor | None = None
    declared_bias: bool = False


@dataclass(frozen=True)
class LayerWeights:
    """Weights of a multi-head attention layer without biases, as ``torch.nn.functional.linear``
    takes them.

    Row block i of ``w_q`` is the transposed W_Q of head i; ``w_o`` maps concatenated heads back.

    Args:
        w_qkv: ``[(H + 2 G) * D, E]``: W_Q of all query heads, then W_K, then W_V.
        w_o: ``[E, H * D]``.
        num_heads: H, which tells where the parts of ``w_qkv`` end.
    """

    w_qkv: Tensor
    w_o: Tensor
    num_heads: int

    @property
    def query_width(self) -> int:
        """H * D."""
        return self.w_o.shape[1]

    @property
    def key_width(self) -> int:
        """G * D."""
        return (self.w_qkv.shape[0] - self.query_width) // 2

    @property
    def w_q(self) -> Tensor:
        """``[H * D, E]``, a view."""
        return self.w_qkv[: self.query_width]

    @property
    def w_kv(self) -> Tensor:
        """``[2 G * D, E]``, a view."""
        return self.w_qkv[self.query_width :]

    @property
    def w_k(self) -> Tensor:
        """``[G * D, E]``, a view."""
        return self.w_qkv[self.query_width : self.query_width + self.key_width]

    @property
    def w_v(self) -> Tensor:
        """``[G * D, E]``, a view."""
        return self.w_qkv[self.query_width + self.key_width :]


@dataclass(frozen=True)
class AttentionInputs:
    """Inputs of scope ``attention``.

    Args:
        q: ``[B, H, L, D]``.
        k: ``[B, G, S, D]``.
        v: ``[B, G, S, D]``.
        grad_output: ``[B, H, L, D]``, contiguous; None where the mode takes no gradients.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    masks: MaskTensors = MaskTensors()
    grad_output: Tensor | None = None

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Tensors whose gradients the training modes take, by name."""
        return {"q": self.q, "k": self.k, "v": self.v}


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of scope ``layer``: self-attention where ``x_kv`` is ``x`` itself, else
    cross-attention.

    Args:
        x: ``[B, L, E]``.
        x_kv: ``[B, S, E]``, source of keys and values.
        grad_output: ``[B, L, E]``, contiguous; None where the mode takes no gradients.
    """

    x: Tensor
    x_kv: Tensor
    weights: LayerWeights
    masks: MaskTensors = MaskTensors()
    grad_output: Tensor | None = None

    @property
    def is_self_attention(self) -> bool:
        return self.x_kv is self.x

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Tensors whose gradients the training modes take, by name."""
        source = {} if self.is_self_attention else {"x_kv": self.x_kv}
        return {"x": self.x, **source, "w_qkv": self.weights.w_qkv, "w_o": self.weights.w_o}


Inputs: TypeAlias = AttentionInputs | LayerInputs


def check_inputs(case: Case, inputs: Inputs) -> None:
    """Refuse tensors that do not fit the case, before any kernel sees them.

    Raises:
        InvalidValueError: a tensor's shape or dtype is wrong, a mask is 3-D or float where bool is
            due, or a bias holds only zeros and ones without being declared a bias.
    """
    c = case.config
    if case.scope is Scope.LAYER:
        if not isinstance(inputs, LayerInputs):
            raise InvalidValueError("inputs", "LayerInputs for scope layer", type(inputs).__name__)
        _check(c, "x", inputs.x, (c.batch_size, c.seq_len, c.hidden_size))
        _check(c, "x_kv", inputs.x_kv, (c.batch_size, c.kv_seq_len, c.hidden_size))
        width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        _check(c, "w_qkv", inputs.weights.w_qkv, (width, c.hidden_size))
        _check(c, "w_o", inputs.weights.w_o, (c.hidden_size, c.num_heads * c.head_dim))
    else:
        if not isinstance(inputs, AttentionInputs):
            raise InvalidValueError(
                "inputs", "AttentionInputs for scope attention", type(inputs).__name__
            )
        _check(c, "q", inputs.q, (c.batch_size, c.num_heads, c.seq_len, c.head_dim))
        _check(c, "k", inputs.k, (c.batch_size, c.num_kv_heads, c.kv_seq_len, c.head_dim))
        _check(c, "v", inputs.v, (c.batch_size, c.num_kv_heads, c.kv_seq_len, c.head_dim))
    check_masks(c, inputs.masks)


def _check(c: AttentionConfig, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise InvalidValueError(f"{name}.shape", f"{shape}", tuple(tensor.shape))
    if tensor.dtype != torch_dtype(c.dtype):
        raise InvalidValueError(f"{name}.dtype", f"{c.dtype}", str(tensor.dtype))


def check_masks(c: AttentionConfig, masks: MaskTensors) -> None:
    """Refuse mask tensors that do not fit the config; see ``check_inputs``."""
    _check_presence(c, masks)
    if masks.key_padding is not None:
        _check_mask_dtype("key_padding", masks.key_padding, torch.bool)
        if tuple(masks.key_padding.shape) != (c.batch_size, c.kv_seq_len):
            raise InvalidValueError(
                "key_padding.shape",
                f"{(c.batch_size, c.kv_seq_len)}",
                tuple(masks.key_padding.shape),
            )
    if masks.keep is not None:
        _check_mask_dtype("keep", masks.keep, torch.bool)
        _check_mask_shape(c, "keep", masks.keep)
    if masks.bias is not None:
        _check_mask_dtype("bias", masks.bias, torch_dtype(c.dtype))
        _check_mask_shape(c, "bias", masks.bias)
        zero_or_one = (masks.bias == 0) | (masks.bias == 1)
        if not masks.declared_bias and masks.bias.numel() and bool(zero_or_one.all()):
            raise InvalidValueError(
                "bias",
                "a bias, or declared_bias=True (it holds only 0 and 1, like a keep-mask)",
                str(masks.bias.dtype),
            )


def _check_presence(c: AttentionConfig, masks: MaskTensors) -> None:
    wanted = {
        "key_padding": c.mask.key_padding > 0,
        "keep": c.mask.keep is not None,
        "bias": c.mask.bias is not None,
    }
    for name, due in wanted.items():
        if due != (getattr(masks, name) is not None):
            state = "a tensor" if due else "no tensor"
            raise InvalidValueError(f"masks.{name}", f"{state} with mask={c.mask}", not due)


def _check_mask_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise InvalidValueError(f"{name}.dtype", str(dtype), str(tensor.dtype))


def _check_mask_shape(c: AttentionConfig, name: str, tensor: Tensor) -> None:
    full = (c.batch_size, c.num_heads, c.seq_len, c.kv_seq_len)
    shape = tuple(tensor.shape)
    if len(shape) == 2:
        shape = (1, 1, *shape)
    fits = len(shape) == 4 and all(s in (1, f) for s, f in zip(shape, full, strict=True))
    if not fits:
        raise InvalidValueError(
            f"{name}.shape",
            f"2-D {full[2:]} or 4-D broadcastable to {full} (3-D would broadcast over heads)",
            tuple(tensor.shape),
        )


def dense_keep(c: AttentionConfig, masks: MaskTensors, device: torch.device | str) -> Tensor | None:
    """All parts that exclude pairs, except the bias, combined by AND into one boolean mask.

    Returns:
        Broadcastable to ``[B, H, L, S]``, 4-D, True = attend; None where nothing is excluded.
    """
    parts = [_position_keep(c, device)]
    if masks.key_padding is not None:
        parts.append(masks.key_padding[:, None, None, :])
    if masks.keep is not None:
        parts.append(masks.keep if masks.keep.dim() == 4 else masks.keep[None, None])
    combined: Tensor | None = None
    for part in parts:
        if part is not None:
            combined = part if combined is None else combined & part
    return combined


def _position_keep(c: AttentionConfig, device: torch.device | str) -> Tensor | None:
    """Causal triangle and window, ``[1, 1, L, S]``; None where the mask has neither."""
    if not c.is_causal and c.mask.window is None:
        return None
    key = torch.arange(c.kv_seq_len, device=device)
    position = torch.arange(c.seq_len, device=device)[:, None] + c.causal_offset
    keep = torch.ones(c.seq_len, c.kv_seq_len, dtype=torch.bool, device=device)
    if c.is_causal:
        keep &= key <= position
    if c.mask.window is not None:
        keep &= key > position - c.mask.window
        keep &= key < position + c.mask.window
    return keep[None, None]


def dense_bias(c: AttentionConfig, masks: MaskTensors, device: torch.device | str) -> Tensor | None:
    """Everything that a mask does, as one additive bias in the query's dtype: -inf excludes a pair.

    Returns:
        Broadcastable to ``[B, H, L, S]``, 4-D; None where the mask does nothing.
    """
    keep = dense_keep(c, masks, device)
    bias = masks.bias
    if bias is not None and bias.dim() == 2:
        bias = bias[None, None]
    if keep is None:
        return bias
    excluded = torch.tensor(float("-inf"), dtype=torch_dtype(c.dtype), device=device)
    other = bias if bias is not None else torch.zeros((), dtype=excluded.dtype, device=device)
    return torch.where(keep, other, excluded)


def is_plain_causal(c: AttentionConfig) -> bool:
    """Whether the mask is a causal triangle from the top left corner and nothing else."""
    return c.mask.features in ({Causal.SQUARE.value}, {Causal.TOP_LEFT.value})
