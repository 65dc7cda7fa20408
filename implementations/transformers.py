"""The attention functions that the models of transformers call: ``eager`` and ``sdpa``.

They stand here as what a model user has today. Called as a model calls them, mask as an additive
bias included. The package is imported only inside functions, for it takes seconds.

Shapes: B batch_size, H num_heads, G num_kv_heads, L seq_len, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from harness.attention import Causal
from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttentionImplementation,
    Case,
    Contract,
    DType,
    Inputs,
    MaskForm,
    MaskTensors,
    dense_bias,
    is_plain_causal,
    operators_run,
    products_are_tf32,
)

_LEAST_MAJOR = 5  # of the version, for the interface that is called here
_INSTALL = "pip install 'mha-bench[transformers]'"
_BACKEND = re.compile(r"::_scaled_dot_product_(?:fused_)?(flash|efficient|cudnn|attention_math)")


_NAN_WITHOUT_KEYS = (
    "NaN for queries without any key: https://github.com/pytorch/pytorch/issues/41508"
)


class _OfTransformers(AttentionImplementation):
    """What both have in common."""

    mask_features = ALL_MASK_FEATURES
    native_grouped_heads = True
    dropout = True

    def extra_reasons(self, case: Case) -> Iterable[str]:
        try:
            found = version_of("transformers")
        except PackageNotFoundError:
            yield f"transformers is not installed: {_INSTALL}"
            return
        if int(found.split(".")[0]) < _LEAST_MAJOR:
            yield f"transformers={found} (at least {_LEAST_MAJOR}: {_INSTALL})"

    def version(self) -> str:
        return f"transformers {version_of('transformers')}, {super().version()}"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        c, function = case.config, self.function()
        module = SimpleNamespace(
            num_key_value_groups=c.group_size, training=case.mode.is_training, is_causal=False
        )
        arguments = {"scaling": c.scale, "dropout": c.dropout_p, **self.mask(case, masks)}

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            output: Tensor = function(module, q, k, v, **arguments)[0]  # [B, L, H, D]
            return output.transpose(1, 2)

        return attend

    def function(self) -> Callable[..., tuple[Tensor, Any]]:
        """The package's function."""
        raise NotImplementedError

    def mask(self, case: Case, masks: MaskTensors) -> dict[str, Any]:
        """The arguments that say which pairs attend."""
        return {"attention_mask": dense_bias(case.config, masks, case.device)}

    def mask_form(self, case: Case) -> MaskForm:
        return case.config.mask.form_as_tensor


class Eager(_OfTransformers):
    """``eager_attention_forward`` of Llama, which most models copy: softmax in float32."""

    name = "transformers_eager"
    dtypes = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
    known_failures: ClassVar[Mapping[str, str]] = {
        "check_masks": _NAN_WITHOUT_KEYS,
        "check_rows_without_keys": _NAN_WITHOUT_KEYS,
        "check_additive_masks": _NAN_WITHOUT_KEYS,
        "check_score_range[float16]": "scores overflow before they are scaled: "
        "https://github.com/QwenLM/Qwen3/issues/910",
    }

    def extra_reasons(self, case: Case) -> Iterable[str]:
        yield from super().extra_reasons(case)
        c = case.config
        if c.mask.causal is Causal.BOTTOM_RIGHT and c.seq_len > c.kv_seq_len:
            yield (
                f"seq_len={c.seq_len} (at most kv_seq_len={c.kv_seq_len} with mask={c.mask}: "
                "NaN for queries without any key)"
            )

    def function(self) -> Callable[..., tuple[Tensor, Any]]:
        from transformers.models.llama.modeling_llama import eager_attention_forward

        return eager_attention_forward  # type: ignore[no-any-return]

    def contract(self, case: Case) -> Contract:
        return Contract.TF32 if products_are_tf32(case) else Contract.MATERIALISED

    def notes(self, case: Case) -> tuple[str, ...]:
        return ("grouped heads expanded by transformers",) if case.config.group_size > 1 else ()


class Sdpa(_OfTransformers):
    """``sdpa_attention_forward``; ``kernel`` says which backend torch chose."""

    name = "transformers_sdpa"
    known_failures: ClassVar[Mapping[str, str]] = {
        "check_nan_in_nan_out[cpu]": "the CPU's flash kernel gives 0 for some NaN queries: "
        "https://github.com/pytorch/pytorch/issues/141128"
    }

    def extra_reasons(self, case: Case) -> Iterable[str]:
        yield from super().extra_reasons(case)
        for argument in ("batch_size", "seq_len"):
            if not getattr(case.config, argument):
                yield f"{argument}=0 (at least 1: its reshape of the output)"

    def function(self) -> Callable[..., tuple[Tensor, Any]]:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        return ALL_ATTENTION_FUNCTIONS["sdpa"]  # type: ignore[no-any-return]

    def mask(self, case: Case, masks: MaskTensors) -> dict[str, Any]:
        # One query is taken for decoding, where a causal flag is ignored.
        if is_plain_causal(case.config) and case.config.seq_len > 1:
            return {"attention_mask": None, "is_causal": True}
        return {**super().mask(case, masks), "is_causal": False}

    def mask_form(self, case: Case) -> MaskForm:
        by_flag = is_plain_causal(case.config) and case.config.seq_len > 1
        return MaskForm.FLAG if by_flag else super().mask_form(case)

    def kernel(self, case: Case, inputs: Inputs) -> str:
        """By the same names as the kernels of torch's own ``sdpa``."""
        call = self.prepare(case, inputs)
        with torch.set_grad_enabled(case.mode.is_training):
            names = operators_run(call, case.device)
        chosen = next((found[1] for name in names if (found := _BACKEND.search(name))), None)
        return f"sdpa:{(chosen or 'unknown').removeprefix('attention_')}"

    def notes(self, case: Case) -> tuple[str, ...]:
        c = case.config
        expands = c.group_size > 1 and not c.mask.is_none and not is_plain_causal(c)
        return ("grouped heads expanded by transformers",) if expands and c.seq_len > 1 else ()
