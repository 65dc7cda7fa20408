"""The clock that fits a device."""

from __future__ import annotations

from collections.abc import Callable

from harness.measuring.clock import Asynchronous, Clock, CpuClock
from harness.measuring.cuda import CudaClock, TorchDriver


def make_clock(
    device: str, implementation: object = None, before: Callable[[], None] | None = None
) -> Clock:
    """The clock for calls of ``implementation`` on ``device``.

    Args:
        before: Untimed work in front of every sample.
    """
    if device == "cuda":
        return CudaClock(TorchDriver(), before)
    hook = implementation.synchronize if isinstance(implementation, Asynchronous) else None
    return CpuClock(hook, before)
