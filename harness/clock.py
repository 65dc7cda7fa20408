"""Timing one sample: K calls between two readings of the device's clock.

The reading waits for the device, so work that a call only started is counted: a CUDA stream is
synchronised, and an implementation with a ``synchronize`` method (one that computes in threads of
its own, say) is asked to finish inside the window.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class Asynchronous(Protocol):
    """An implementation whose calls return before their work is done."""

    def synchronize(self) -> None:
        """Return when all work that was started is done."""
        ...


@dataclass(frozen=True)
class Sample:
    """One timed sample.

    Args:
        time_s: Seconds per call.
        result: What the last call returned.
    """

    time_s: float
    result: Any


class Clock(Protocol):
    """Reads the time of calls on one kind of device."""

    def sample(self, run: Callable[[], Any], calls: int) -> Sample:
        """Time ``calls`` calls back to back, their end included."""
        ...


@dataclass(frozen=True)
class CpuClock:
    """``time.perf_counter_ns`` around the calls (overhead about 0.25 us).

    Args:
        synchronize: Waits for work that a call only started; inside the window.
        before: Untimed work in front of the window, such as emptying the caches.
    """

    synchronize: Callable[[], None] | None = None
    before: Callable[[], None] | None = None

    def sample(self, run: Callable[[], Any], calls: int) -> Sample:
        synchronize = self.synchronize
        if self.before is not None:
            self.before()
        start_ns = time.perf_counter_ns()
        for _ in range(calls):
            result = run()
        if synchronize is not None:
            synchronize()
        return Sample((time.perf_counter_ns() - start_ns) * 1e-9 / calls, result)


@dataclass(frozen=True)
class CudaClock:
    """CUDA events around the calls, on the current stream.

    Args:
        before: Untimed work on the stream in front of the first event (flushing the cache, or a
            sleep kernel that hides launch gaps).
    """

    before: Callable[[], None] | None = None
    make_event: Callable[[], Any] = field(default=partial(torch.cuda.Event, enable_timing=True))

    def sample(self, run: Callable[[], Any], calls: int) -> Sample:
        start, end = self.make_event(), self.make_event()
        if self.before is not None:
            self.before()
        start.record()
        for _ in range(calls):
            result = run()
        end.record()
        end.synchronize()
        return Sample(start.elapsed_time(end) * 1e-3 / calls, result)


def make_clock(
    device: str, implementation: object = None, before: Callable[[], None] | None = None
) -> Clock:
    """The clock for calls of ``implementation`` on ``device``.

    Args:
        before: Untimed work in front of every sample.
    """
    if device == "cuda":
        return CudaClock(before)
    hook = implementation.synchronize if isinstance(implementation, Asynchronous) else None
    return CpuClock(hook, before)
