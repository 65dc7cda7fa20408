"""xformers' operators, and why one of them can't do a case, by xformers' own predicates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch

from harness.interface import Case, missing_device, torch_dtype
from implementations.xformers.bias import positional_bias, takes_densely

# SDPA backends whose kernel an operator calls when its name ends in -pt.
_TWINS = {"cutlass": "efficient", "flash": "flash"}
_AGAIN = "xFormers can't load C++/CUDA extensions. xFormers was "  # xformers' own words for it
_REINSTALL = "install the one for this torch: https://github.com/facebookresearch/xformers#installing-xformers"


@dataclass(frozen=True)
class Operator:
    """One operator of xformers.

    Args:
        module: Its module in xformers.ops.fmha.
        forward: The class of its forward pass.
        backward: The class of its backward pass; None where there is none.
    """

    module: str
    forward: Any
    backward: Any

    @property
    def name(self) -> str:
        return str(self.forward.NAME)

    @property
    def twin(self) -> str | None:
        """The SDPA backend whose very kernel it calls."""
        return _TWINS.get(self.module) if self.name.endswith("-pt") else None

    @property
    def kernel(self) -> str:
        return (
            f"sdpa:{self.twin} via xformers {self.name}" if self.twin else f"xformers:{self.name}"
        )


def operators(forced: str | None, case: Case) -> tuple[Operator, ...]:
    """The forced one, or those that xformers' dispatch asks on CUDA, in its order."""
    if forced is not None:
        return (_operator(forced),)
    names = ["flash3", "flash", "cutlass"]
    c = case.config
    few_queries = c.seq_len <= 32 and c.kv_seq_len >= 256 and c.batch_size * c.num_kv_heads < 64
    if c.group_size > 1 and few_queries and not case.mode.is_training:
        names = ["flash", "triton_splitk", "cutlass"]
    return tuple(_operator(name) for name in names)


@cache
def _operator(name: str) -> Operator:
    module = import_module(f"xformers.ops.fmha.{name}")
    return Operator(name, module.FwOp, getattr(module, "BwOp", None))


def expands_grouped_heads(case: Case) -> bool:
    """Whether keys and values are copied per query head: no backward pass knows groups."""
    return case.config.group_size > 1 and case.mode.is_training


@cache
def library_failures(device: str) -> tuple[str, ...]:
    """Why no operator runs on this device, whatever the case."""
    if device != "cuda":
        return ()
    from xformers import _cpp_lib

    reasons = [*missing_device(device)]
    failure = _cpp_lib._cpp_library_load_exception
    if failure is not None:
        said = " ".join(str(failure).split("\n  Please reinstall")[0].split())
        reasons.append(
            f"xformers' library does not load: {said.removeprefix(_AGAIN)}; {_REINSTALL}"
        )
    return tuple(reasons)


@cache
def reasons_of(operator: Operator, case: Case) -> tuple[str, ...]:
    """Reasons of one operator, forward and, in modes with gradients, backward."""
    inputs = _shapes_only(operator, case)
    found = [*operator.forward.not_supported_reasons(inputs)]
    if case.mode.has_gradients:
        if operator.backward is None:
            found.append("it has no backward pass")
        else:
            found += operator.backward.not_supported_reasons(inputs)
    told = dict.fromkeys(_with_values(reason, operator, case) for reason in found)
    return tuple(f"{operator.name}: {reason}" for reason in told if reason)


def _shapes_only(operator: Operator, case: Case) -> Any:
    """Inputs of the case's shapes, dtype and device, whose tensors share one element of memory."""
    from xformers.ops import fmha

    c = case.config
    one = torch.empty(1, dtype=torch_dtype(c.dtype), device=_probe_device(case))
    grouped = c.group_size > 1 and not expands_grouped_heads(case)
    heads = (c.num_kv_heads, c.group_size) if grouped else (c.num_heads,)
    bias = positional_bias(c)
    if takes_densely(c, operator.forward):
        bias = one.expand(c.batch_size, *heads, c.seq_len, c.kv_seq_len)
    query, key = (
        one.expand(c.batch_size, length, *heads, c.head_dim) for length in (c.seq_len, c.kv_seq_len)
    )
    return fmha.Inputs(query, key, key, bias, c.dropout_p, c.scale)


def _probe_device(case: Case) -> str:
    return case.device if case.device != "cuda" or torch.cuda.is_available() else "meta"


def _with_values(reason: str, operator: Operator, case: Case) -> str:
    """xformers' sentence, with value and limit where it leaves them out; empty to leave it out."""
    c, forward = case.config, operator.forward
    meta = _probe_device(case) == "meta"
    known: Iterable[tuple[str, str]] = (
        ("device=meta", ""),
        ("bf16 is only supported on A100+", "" if meta else reason),
        ("max(query.shape[-1]", f"head_dim={c.head_dim} (at most {forward.SUPPORTED_MAX_K})"),
        ("min(query.shape[-1]", f"head_dim={c.head_dim} (at least {forward.SUPPORTED_MIN_K})"),
        ("Embed dim", f"head_dim={c.head_dim} (only 16, 32, 64, 128, 256, 512)"),
        ("query.shape[-1] %", f"head_dim={c.head_dim} (a multiple of 8)"),
        ("key.shape[-1] %", f"head_dim={c.head_dim} (a multiple of 8)"),
        ("value.shape[-1] %", f"head_dim={c.head_dim} (a multiple of 8)"),
        ("dtype=", f"dtype={c.dtype} (only {_names(forward.SUPPORTED_DTYPES)})"),
        ("attn_bias type is", f"mask={c.mask} (it takes no dense bias)"),
        ("dropout >", f"dropout_p={c.dropout_p:g} (only 0)"),
    )
    return next((words for start, words in known if reason.startswith(start)), reason)


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
