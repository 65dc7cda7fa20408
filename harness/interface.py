"""What an implementation of attention is.

The shortest one is a class with a name and one method::

    class Mine(AttentionImplementation):
        name = "mine"

        def make_attend(self, case, masks):
            scale = case.config.scale
            return lambda q, k, v: my_kernel(q, k, v, scale)

``make_attend`` runs once, untimed; **the function that it returns is what is timed**. Conversions
of layout that the kernel needs on each call belong inside it, one-time preparation outside. Declare
what the kernel can do beyond the plain case with the class attributes of
``AttentionImplementation``; a case outside the declaration becomes a row ``unsupported`` with the
reason. Never compute something else, and never fall back to another kernel silently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.attention import AttentionConfig, Case, DType, Mask, MaskForm, Mode, Scope
from harness.errors import InvalidValueError, PluginError, UnsupportedCaseError
from harness.operators import operators_run
from harness.tensors import (
    AttentionInputs,
    Inputs,
    LayerInputs,
    LayerWeights,
    MaskTensors,
    check_inputs,
    check_masks,
    dense_bias,
    dense_keep,
    is_plain_causal,
    torch_dtype,
)

__all__ = [
    "ALL_MASK_FEATURES",
    "Attend",
    "AttendWithLse",
    "AttentionConfig",
    "AttentionImplementation",
    "AttentionInputs",
    "Case",
    "Contract",
    "DType",
    "Implementation",
    "Inputs",
    "InvalidValueError",
    "LayerInputs",
    "LayerWeights",
    "Mask",
    "MaskForm",
    "MaskTensors",
    "Mode",
    "PluginError",
    "Scope",
    "UnsupportedCaseError",
    "check_inputs",
    "check_masks",
    "dense_bias",
    "dense_keep",
    "expand_grouped_heads",
    "is_plain_causal",
    "mask_form_of",
    "missing_device",
    "operators_run",
    "products_are_tf32",
    "torch_dtype",
]

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
AttendWithLse: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

_Result = TypeVar("_Result")

ALL_MASK_FEATURES = frozenset(
    {"causal", "top_left", "bottom_right", "window", "key_padding", "keep", "bias"}
)


class Contract(StrEnum):
    """How an implementation rounds between inputs and output; the harness judges errors by it."""

    FUSED = "fused"  # products, softmax and sums in float32 whatever the inputs' dtype
    MATERIALISED = "materialised"  # scores and probabilities rounded to the inputs' dtype
    # Of float32 inputs only, sums in float32 nevertheless; other dtypes are judged as fused:
    TF32 = "tf32"  # factors of products rounded to 11 bits, as TF32 tensor cores do
    BF16X3 = "bf16x3"  # products of two bfloat16 halves each, the smallest of four left out


@runtime_checkable
class Implementation(Protocol):
    """What the harness needs to know; ``AttentionImplementation`` gives most of it for free."""

    name: str

    def unsupported_reasons(self, case: Case) -> tuple[str, ...]:
        """Why the case can't be done, each reason with value and limit; empty: it can.

        Needs no tensors and must not raise.
        """
        ...

    def prepare(self, case: Case, inputs: Inputs) -> Callable[[], Tensor]:
        """Everything done once, untimed; the callable that it returns is what is timed.

        Returns:
            A function without arguments that computes the forward pass: ``[B, H, L, D]`` for scope
            ``attention``, ``[B, L, E]`` for scope ``layer``. The harness adds gradients by
            autograd.
        """
        ...

    def version(self) -> str:
        """Version of the code that runs, e.g. ``torch 2.13.0``."""
        ...

    def kernel(self, case: Case, inputs: Inputs) -> str:
        """Name of the kernel that really runs for these inputs; asked once, untimed."""
        ...

    def notes(self, case: Case) -> tuple[str, ...]:
        """Work beyond the kernel that is inside the timed call, e.g. ``grouped heads expanded``."""
        ...

    def contract(self, case: Case) -> Contract:
        """By which rounding contract the output is to be judged."""
        ...

    def expected_alloc_bytes(self, case: Case) -> int | None:
        """Peak of one call by arithmetic, output included; None where nobody has worked it out."""
        ...


class AttentionImplementation(ABC):
    """Base of implementations that compute attention itself: they get their layer for free.

    Required: ``name`` and ``make_attend``. Optional: the declared limits below, ``extra_reasons``
    for what they can't express, ``kernel``, ``mask_form``, ``version``, ``contract``, ``notes``,
    ``make_attend_with_lse`` for kernels that give the log-sum-exp, and ``make_layer`` for
    implementations that fuse more than attention.
    """

    name: str = ""
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    dtypes: ClassVar[frozenset[DType]] = frozenset(DType)
    modes: ClassVar[frozenset[Mode]] = frozenset(Mode)
    scopes: ClassVar[frozenset[Scope]] = frozenset(Scope)
    mask_features: ClassVar[frozenset[str]] = frozenset()
    max_head_dim: ClassVar[int | None] = None
    head_dim_multiple: ClassVar[int] = 1
    native_grouped_heads: ClassVar[bool] = False
    dropout: ClassVar[bool] = False
    # Checks of the conformance battery that fail for a reason that is not the implementation's own:
    # check name, name[dtype] or name[device], to that reason with its issue.
    known_failures: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        """The function of q ``[B, H, L, D]``, k and v ``[B, G, S, D]`` that is timed.

        G is num_heads unless ``native_grouped_heads`` is declared. Inputs may have any strides; the
        result is ``[B, H, L, D]``.
        """

    def make_attend_with_lse(self, case: Case, masks: MaskTensors) -> AttendWithLse | None:
        """The same kernel, returning its log-sum-exp beside the output; None: it offers none.

        For each query the natural logarithm of the sum of exponentials of its scores (scale, bias
        and mask applied), ``[B, H, L]`` in float32 (float64 for float64 inputs); -inf where no key
        attends. It is judged like the output and never timed; gradients are not asked for.
        """
        return None

    def extra_reasons(self, case: Case) -> Iterable[str]:
        """Reasons beyond the declared limits; none by default."""
        return ()

    def version(self) -> str:
        return f"torch {torch.__version__}"

    def kernel(self, case: Case, inputs: Inputs) -> str:
        return self.name

    def mask_form(self, case: Case) -> MaskForm:
        """How the kernel receives the case's mask; ``Mask.form_by_parts`` and ``form_as_tensor``
        are the usual answers. Left alone, rows with a mask say ``unknown``.
        """
        return _untold_form(case)

    def contract(self, case: Case) -> Contract:
        return Contract.TF32 if products_are_tf32(case) else Contract.FUSED

    def expected_alloc_bytes(self, case: Case) -> int | None:
        return None

    def notes(self, case: Case) -> tuple[str, ...]:
        if case.config.group_size > 1 and not self.native_grouped_heads:
            return ("grouped heads expanded in the timed call",)
        return ()

    def unsupported_reasons(self, case: Case) -> tuple[str, ...]:
        return (*self._declared_reasons(case), *self.extra_reasons(case))

    def _declared_reasons(self, case: Case) -> Iterable[str]:
        c = case.config
        yield from _unless_declared("device", case.device, self.devices)
        yield from _unless_declared("dtype", c.dtype, self.dtypes)
        yield from _unless_declared("mode", case.mode, self.modes)
        yield from _unless_declared("scope", case.scope, self.scopes)
        missing = c.mask.features - self.mask_features
        if missing:
            able = ", ".join(sorted(self.mask_features)) or "none"
            yield f"mask={c.mask} (needs {', '.join(sorted(missing))}; can do {able})"
        if self.max_head_dim is not None and c.head_dim > self.max_head_dim:
            yield f"head_dim={c.head_dim} (at most {self.max_head_dim})"
        if c.head_dim % self.head_dim_multiple:
            yield f"head_dim={c.head_dim} (a multiple of {self.head_dim_multiple})"
        if c.dropout_p and not self.dropout:
            yield f"dropout_p={c.dropout_p:g} (only 0)"

    def prepare(self, case: Case, inputs: Inputs) -> Callable[[], Tensor]:
        check_inputs(case, inputs)
        attend = self._for_any_groups(case, self.make_attend(case, inputs.masks))
        if isinstance(inputs, LayerInputs):
            layer = self.make_layer(case, inputs.weights, attend)
            x, x_kv = inputs.x, inputs.x_kv
            return lambda: layer(x, x_kv)
        q, k, v = inputs.q, inputs.k, inputs.v
        return lambda: attend(q, k, v)

    def prepare_with_lse(
        self, case: Case, inputs: AttentionInputs
    ) -> Callable[[], tuple[Tensor, Tensor]] | None:
        """A call that gives output and log-sum-exp; None where that is not offered."""
        check_inputs(case, inputs)
        attend = self.make_attend_with_lse(case, inputs.masks)
        if attend is None:
            return None
        attend_any = self._for_any_groups(case, attend)
        q, k, v = inputs.q, inputs.k, inputs.v
        return lambda: attend_any(q, k, v)

    def _for_any_groups(
        self, case: Case, attend: Callable[[Tensor, Tensor, Tensor], _Result]
    ) -> Callable[[Tensor, Tensor, Tensor], _Result]:
        """The same function, given a key and value head for each query head if it needs that."""
        group_size = case.config.group_size
        if group_size == 1 or self.native_grouped_heads:
            return attend
        return lambda q, k, v: attend(
            q, expand_grouped_heads(k, group_size), expand_grouped_heads(v, group_size)
        )

    def make_layer(
        self, case: Case, weights: LayerWeights, attend: Attend
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """The layer as a function of x ``[B, L, E]`` and x_kv ``[B, S, E]``, giving ``[B, L, E]``.

        Concat(head_1, ..., head_H) W_O with head_i = attention(x W_Q_i, x_kv W_K_i, x_kv W_V_i)
        (Vaswani et al. 2017), all heads' projections packed into one product.
        """
        c = case.config
        end_of_q, end_of_k = c.num_heads, c.num_heads + c.num_kv_heads

        def heads(packed: Tensor) -> Tensor:
            batch_size, length, width = packed.shape
            return packed.view(batch_size, length, width // c.head_dim, c.head_dim).transpose(1, 2)

        def layer(x: Tensor, x_kv: Tensor) -> Tensor:
            if x_kv is x:
                qkv = heads(F.linear(x, weights.w_qkv))
                q, k, v = qkv[:, :end_of_q], qkv[:, end_of_q:end_of_k], qkv[:, end_of_k:]
            else:
                q, kv = heads(F.linear(x, weights.w_q)), heads(F.linear(x_kv, weights.w_kv))
                k, v = kv[:, : c.num_kv_heads], kv[:, c.num_kv_heads :]
            concatenated = attend(q, k, v).transpose(1, 2).flatten(2)
            return F.linear(concatenated, weights.w_o)

        return layer


def _unless_declared(argument: str, value: str, able: frozenset[str]) -> Iterable[str]:
    if value not in able:
        yield f"{argument}={value} (only {', '.join(sorted(able))})"


def expand_grouped_heads(x: Tensor, group_size: int) -> Tensor:
    """``[B, G, S, D]`` to ``[B, G * group_size, S, D]``: head i is a copy of i // group_size."""
    return x.repeat_interleave(group_size, dim=1)


def mask_form_of(implementation: Implementation, case: Case) -> MaskForm:
    """What it says of the form in which it received the mask; telling is no duty."""
    if isinstance(implementation, AttentionImplementation):
        return implementation.mask_form(case)
    return _untold_form(case)


def _untold_form(case: Case) -> MaskForm:
    return MaskForm.NONE if case.config.mask.is_none else MaskForm.UNKNOWN


def missing_device(device: str) -> tuple[str, ...]:
    """Why a device can't be used on this machine; empty: it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return (
            f"device=cuda (this machine has no CUDA device that torch {torch.__version__} sees)",
        )
    return ()


def products_are_tf32(case: Case) -> bool:
    """Whether torch's own matrix products shorten the factors of this case to TF32."""
    allowed: str = torch.backends.cuda.matmul.fp32_precision
    is_float32 = case.device == "cuda" and case.config.dtype is DType.FLOAT32
    return is_float32 and allowed == "tf32"
