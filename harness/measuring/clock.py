"""Timing one sample: K calls between two readings of the device's clock.

The reading waits for work that a call only started: an implementation with a ``synchronize``
method (one that computes in threads of its own, say) is asked to finish inside the window. The
clock of CUDA devices is in ``harness.measuring.cuda``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


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
