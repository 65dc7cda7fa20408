"""xformers' memory-efficient attention: by its own choice of operator, or with a forced one.

xformers is imported only inside functions: its absence, or a library that does not load, is a
reason in the row. Its layout is ``[batch, seq_len, num_heads, head_dim]``, which has the rank of
ours and raises no error when mistaken for it; the conversion is inside the timed call.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor

from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttentionImplementation,
    Case,
    Inputs,
    MaskForm,
    MaskTensors,
    expand_grouped_heads,
)
from implementations.xformers.bias import applied_mask, takes_densely
from implementations.xformers.operators import (
    Operator,
    expands_grouped_heads,
    library_failures,
    operators,
    reasons_of,
)

__all__ = ["Xformers", "XformersCutlass", "XformersFa2", "XformersFa3", "XformersSplitK"]

_LARGEST_GRID_AXIS = 65535  # of a CUDA launch, on which batch and heads lie


class Xformers(AttentionImplementation):
    """xformers with the operator that it chooses itself; ``kernel`` says which one that is.

    Dtypes, head dimensions and masks are not declared here but asked of xformers' own predicates.
    """

    name = "xformers"
    devices = frozenset({"cuda"})
    mask_features = ALL_MASK_FEATURES
    native_grouped_heads = True
    dropout = True
    operator: ClassVar[str | None] = None  # a module of xformers.ops.fmha; None: xformers chooses

    def extra_reasons(self, case: Case) -> Iterable[str]:
        if find_spec("xformers") is None:
            yield "xformers is not installed: pip install 'mha-bench[xformers]'"
        elif case.device in self.devices:
            yield from library_failures(case.device)
            yield from _size_reasons(case)
            yield from self._operator_reasons(case)

    def version(self) -> str:
        return f"xformers {version('xformers')}, torch {torch.__version__}"

    def kernel(self, case: Case, inputs: Inputs) -> str:
        return self.chosen(case).kernel

    def mask_form(self, case: Case) -> MaskForm:
        mask = case.config.mask
        is_dense = takes_densely(case.config, self.chosen(case).forward)
        return mask.form_as_tensor if is_dense else mask.form_by_parts

    def notes(self, case: Case) -> tuple[str, ...]:
        operator = self.chosen(case)
        notes = []
        if expands_grouped_heads(case):
            notes.append(
                "grouped heads expanded in the timed call: no backward of xformers has them"
            )
        if takes_densely(case.config, operator.forward):
            notes.append("mask as a dense bias with keys padded to a multiple of 8")
        if operator.twin is not None:
            notes.append(f"torch's own kernel, the same as sdpa_{operator.twin}")
        return tuple(notes)

    def candidates(self, case: Case) -> tuple[Operator, ...]:
        """The forced operator, or those that xformers asks, in its order."""
        return operators(self.operator, case)

    def chosen(self, case: Case) -> Operator:
        """The first candidate that can do the case."""
        candidates = self.candidates(case)
        able = (operator for operator in candidates if not reasons_of(operator, case))
        return next(able, candidates[0])

    def _operator_reasons(self, case: Case) -> Iterable[str]:
        found = [reasons_of(operator, case) for operator in self.candidates(case)]
        if all(found):
            for reasons in found:
                yield from reasons

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        from xformers.ops import fmha

        c = case.config
        operator = self.chosen(case)
        op = None if self.operator is None else (operator.forward, operator.backward)
        mask = applied_mask(case, masks, operator.forward)
        options: dict[str, Any] = {"p": c.dropout_p, "scale": c.scale, "op": op}
        expanded = expands_grouped_heads(case)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if expanded:
                k, v = (expand_grouped_heads(x, c.group_size) for x in (k, v))
            q, k, v = (_aligned(x.transpose(1, 2)) for x in (q, k, v))
            output = fmha.memory_efficient_attention(q, k, v, mask.bias, **options)
            return mask.empty_excluded_rows(output.transpose(1, 2))

        def attend_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q = _aligned(q.transpose(1, 2)).view(
                c.batch_size, c.seq_len, c.num_kv_heads, c.group_size, c.head_dim
            )
            k, v = (_shared(_aligned(x.transpose(1, 2)), c.group_size) for x in (k, v))
            output = fmha.memory_efficient_attention(q, k, v, mask.bias, **options)
            return mask.empty_excluded_rows(output.flatten(2, 3).transpose(1, 2))

        return attend_grouped if c.group_size > 1 and not expanded else attend


class XformersCutlass(Xformers):
    """The CUTLASS kernel, since 0.0.33 the one inside torch."""

    name = "xformers_cutlass"
    operator = "cutlass"


class XformersFa2(Xformers):
    """FlashAttention 2: the flash_attn package where it is installed, else the one inside torch."""

    name = "xformers_fa2"
    operator = "flash"


class XformersFa3(Xformers):
    """FlashAttention 3, built with xformers."""

    name = "xformers_fa3"
    operator = "flash3"


class XformersSplitK(Xformers):
    """The Triton kernel that splits the keys: for few queries on many keys; forward only."""

    name = "xformers_splitk"
    operator = "triton_splitk"


def _size_reasons(case: Case) -> Iterable[str]:
    c = case.config
    sizes = {"batch_size": c.batch_size, "seq_len": c.seq_len, "kv_seq_len": c.kv_seq_len}
    for name, size in sizes.items():
        if size < 1:
            yield f"{name}={size} (at least 1)"
    for name, size in {"batch_size": c.batch_size, "num_heads": c.num_heads}.items():
        if size > _LARGEST_GRID_AXIS:
            yield f"{name}={size} (at most {_LARGEST_GRID_AXIS}: an axis of the launch grid)"


def _aligned(x: Tensor) -> Tensor:
    """x ``[B, L, H, D]`` as it is where the operators take its strides, else copied."""
    return x if x.stride(-1) == 1 and x.stride(-2) % 8 == 0 else x.contiguous()


def _shared(x: Tensor, group_size: int) -> Tensor:
    """``[B, S, G, D]`` to ``[B, S, G, R, D]`` without a copy: R query heads read the same key."""
    return x.unsqueeze(3).expand(-1, -1, -1, group_size, -1)
