"""The flash_attn packages: FlashAttention 2, 3 and 4 as their authors ship them.

Layout ``[batch, seq_len, num_heads, head_dim]``; causal masks and windows are aligned to the bottom
right; grouped heads are native. Each is imported only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any

import torch
from torch import Tensor

from harness.interface import (
    Attend,
    AttentionImplementation,
    Case,
    DType,
    Inputs,
    InvalidValueError,
    MaskForm,
    MaskTensors,
    missing_device,
    torch_dtype,
)


@dataclass(frozen=True)
class _Package:
    """One generation of the package.

    Args:
        distribution: Its name for pip.
        module: Where ``flash_attn_func`` is.
        install: The command that installs it.
        unbounded: What its ``window_size`` takes for a side without bound.
        dropout: Whether it has dropout.
    """

    distribution: str
    module: str
    install: str
    unbounded: int | None
    dropout: bool = False


_PACKAGES = {
    2: _Package(
        "flash-attn",
        "flash_attn",
        "pip install flash-attn --no-build-isolation",
        unbounded=-1,
        dropout=True,
    ),
    3: _Package(
        "flash-attn-3",
        "flash_attn_interface",
        "git clone https://github.com/Dao-AILab/flash-attention && "
        "cd flash-attention/hopper && python setup.py install",
        unbounded=-1,
    ),
    4: _Package("flash-attn-4", "flash_attn.cute", "pip install flash-attn-4", unbounded=None),
}


class FlashAttn(AttentionImplementation):
    """flash_attn_func of one generation.

    Args:
        generation: 2, 3 or 4.
    """

    name = "flash_attn"
    devices = frozenset({"cuda"})
    dtypes = frozenset({DType.FLOAT16, DType.BFLOAT16})
    mask_features = frozenset({"causal", "bottom_right", "window"})
    max_head_dim = 256
    head_dim_multiple = 8
    native_grouped_heads = True
    dropout = True

    def __init__(self, generation: int = 2) -> None:
        if generation not in _PACKAGES:
            raise InvalidValueError("generation", "a generation", generation, _PACKAGES)
        self.generation = generation
        self._package = _PACKAGES[generation]

    def extra_reasons(self, case: Case) -> Iterable[str]:
        c = case.config
        for name in ("batch_size", "seq_len", "kv_seq_len"):
            if getattr(c, name) < 1:
                yield f"{name}={getattr(c, name)} (at least 1)"
        if c.dropout_p and not self._package.dropout:
            yield f"dropout_p={c.dropout_p:g} (only 0 in generation {self.generation})"
        if _installed_version(self._package) is None:
            yield f"{self._package.distribution} is not installed: {self._package.install}"
        elif case.device in self.devices:
            yield from _failures(self.generation, c.dtype, c.head_dim)

    def version(self) -> str:
        found = _installed_version(self._package)
        return f"{self._package.distribution} {found}, torch {torch.__version__}"

    def kernel(self, case: Case, inputs: Inputs) -> str:
        return f"flash_attn:{self.generation}"

    def mask_form(self, case: Case) -> MaskForm:
        return case.config.mask.form_by_parts

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        function = _function(self._package)
        options = self._options(case)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (_unit_stride(x.transpose(1, 2)) for x in (q, k, v))
            result = function(q, k, v, **options)
            output: Tensor = result[0] if isinstance(result, tuple) else result
            return output.transpose(1, 2)

        return attend

    def _options(self, case: Case) -> dict[str, Any]:
        c = case.config
        unbounded = self._package.unbounded
        left = unbounded if c.mask.window is None else c.mask.window - 1
        # A window of one side only is what the causal flag adds to.
        right = 0 if c.is_causal and c.mask.window is not None else left
        options = {
            "softmax_scale": c.scale,
            "causal": c.is_causal,
            "window_size": (left, right),
        }
        return options | ({"dropout_p": c.dropout_p} if self._package.dropout else {})


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _installed_version(package: _Package) -> str | None:
    for name in (package.distribution, package.distribution.replace("-", "_")):
        try:
            return version_of(name)
        except PackageNotFoundError:
            continue
    return None


def _function(package: _Package) -> Callable[..., Any]:
    function: Callable[..., Any] = import_module(package.module).flash_attn_func
    return function


@cache
def _failures(generation: int, dtype: DType, head_dim: int) -> tuple[str, ...]:
    """Why the package does not run here, found by one real call on a few tokens."""
    if missing := missing_device("cuda"):
        return missing
    package = _PACKAGES[generation]
    try:
        x = torch.zeros(1, 16, 1, head_dim, dtype=torch_dtype(dtype), device="cuda")
        _function(package)(x, x, x)
        torch.cuda.synchronize()
    except (ImportError, AttributeError, RuntimeError, AssertionError, OSError) as error:
        words = str(error).strip().splitlines() or [""]
        return (f"{package.distribution} does not run: {type(error).__name__}: {words[0]}",)
    return ()
