"""Compiles the launches of a plan for a card that need not be there.

Launches are recorded with tensors without memory, and their arguments turned into what Triton's
launcher would make of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from harness.interface import torch_dtype
from implementations.fused.cuda.plan import Plan

KERNELS = {
    "forward": ("forward_kernel",),
    "combine": ("combine_kernel",),
    "backward": ("delta_kernel", "key_gradients_kernel", "query_gradients_kernel"),
}
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
}


@dataclass(frozen=True)
class Launch:
    """One launch.

    Args:
        kernel: The kernel as Triton wraps it.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    def compile(self, capability: int) -> Any:
        """The launch's kernel for a compute capability such as 90.

        Raises:
            triton.CompilationError: the kernel can't be compiled for it.
        """
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names = self.kernel.arg_names
        options = {n: v for n, v in self.constants.items() if n not in names}
        given = len(self.arguments)
        values = (*self.arguments, *(self.constants[name] for name in names[given:]))
        kinds = (*map(_kind, self.arguments), *("constexpr" for _ in names[given:]))
        kind_at = dict(_leaves(kinds, ()))
        known = {p: v for p, v in _leaves(values, ()) if kind_at[p] == "constexpr"}
        divisible = {
            p: [["tt.divisibility", 16]]
            for p, v in _leaves(values, ())
            if p not in known and _is_divisible_by_16(v)
        }
        source = ASTSource(self.kernel, dict(zip(names, kinds, strict=True)), known, divisible)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@dataclass(frozen=True)
class _Recorder:
    """Stands for a kernel; ``kernel[grid](...)`` is kept."""

    kernel: Any
    launches: list[Launch]

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            self.launches.append(Launch(self.kernel, grid, arguments, constants))

        return launch


def launches_of(plan: Plan, with_gradients: bool) -> list[Launch]:
    """What the plan launches, in order."""
    c, launches = plan.config, list[Launch]()
    dtype = torch_dtype(c.dtype)
    queries = (c.batch_size, c.num_heads, c.seq_len, c.head_dim)
    keys = (c.batch_size, c.num_kv_heads, c.kv_seq_len, c.head_dim)
    q, k, v = (torch.empty(s, dtype=dtype, device="meta") for s in (queries, keys, keys))
    with ExitStack() as patches:
        for module_name, kernels in KERNELS.items():
            module = import_module(f"implementations.fused.cuda.kernels.{module_name}")
            for name in kernels:
                recorder = _Recorder(getattr(module, name), launches)
                patches.enter_context(patch.object(module, name, recorder))
        output, statistics = plan.forward(q, k, v)
        if with_gradients:
            plan.backward(q, k, v, output, statistics, output)
    return launches


def _kind(value: Any) -> Any:
    """An argument's type in Triton's words; groups keep their names."""
    if isinstance(value, tuple):
        return type(value)(*map(_kind, value))
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    if value is None or value is True or value is False or value == 1:
        return "constexpr"
    return "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"


def _leaves(value: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    if isinstance(value, tuple):
        for index, member in enumerate(value):
            yield from _leaves(member, (*path, index))
    else:
        yield path, value


def _is_divisible_by_16(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)
