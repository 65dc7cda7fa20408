"""Compiles the launches of a plan for a card that need not be there.

Launches are recorded with tensors without memory, and handed to Triton's own launcher, which stops
short of launching.
"""

from __future__ import annotations

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
        """The launch's kernel for a compute capability such as 90, as the launcher would ask for
        it.

        Raises:
            triton.CompilationError: the kernel can't be compiled for it.
        """
        from triton.runtime import driver

        # Not set_active and reset_active: the latter looks for a card.
        with patch.object(driver, "_active", _AbsentCard(capability)):
            return self.kernel.warmup(*self.arguments, grid=self.grid, **self.constants)


@dataclass(frozen=True)
class _AbsentCard:
    """What compiling asks a driver for."""

    capability: int

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # a device of its own: kernels keep what was compiled for a device

    def get_current_stream(self, device: int) -> int:
        return 0


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
