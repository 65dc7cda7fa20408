"""Timing and watching a CUDA device.

Written against a small ``CudaDriver`` so that its logic is tested without a card; ``TorchDriver``
is the real one.

- Time is taken between two events on the current stream, so the host's launches do not count as
  long as they stay ahead of the device. A sleep kernel in front of the first event gives them that
  lead.
- K short calls are captured once in a graph and replayed, so that launches count neither there.
- Clocks and the reasons for lowering them are read by NVML after each round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from harness.measuring.clock import Sample

# NVML's clock-event reasons that mean lost speed: power cap, hardware slowdown, sync boost,
# software and hardware thermal slowdown, power brake (nvml.h, nvmlClocksEventReason*)
_THROTTLING = 0x04 | 0x08 | 0x10 | 0x20 | 0x40 | 0x80
LOW_CLOCK = 0.95
_LEAD_CYCLES = 400_000  # about 0.2 ms at 1.8 GHz
_HOST_CALLS = 5


class Event(Protocol):
    """A point in a stream."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end: Any) -> float: ...


@dataclass(frozen=True)
class ClockState:
    """What NVML says of the device.

    Args:
        sm_mhz: Clock of the multiprocessors.
        reasons: Bit mask of the reasons for which it is lowered.
    """

    sm_mhz: float
    reasons: int

    @property
    def is_throttled(self) -> bool:
        return bool(self.reasons & _THROTTLING)


class CudaDriver(Protocol):
    """What timing needs of the device."""

    def event(self) -> Event: ...

    def sleep(self, cycles: int) -> None:
        """Keep the stream busy."""
        ...

    def synchronize(self) -> None: ...

    def capture(self, run: Callable[[], Any], calls: int) -> tuple[Callable[[], None], Any] | None:
        """A graph of ``calls`` calls: its replay and the last call's result; None: can't be."""
        ...

    def clock_state(self) -> ClockState | None:
        """None where NVML can't be read."""
        ...


class TorchDriver:
    """The device as torch sees it; NVML through the package nvidia-ml-py where it is installed."""

    def event(self) -> Event:
        made: Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return made

    def sleep(self, cycles: int) -> None:
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def capture(self, run: Callable[[], Any], calls: int) -> tuple[Callable[[], None], Any] | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(calls):
                    result = run()
        except RuntimeError:  # an operation that no graph can hold, such as a copy to the host
            torch.cuda.synchronize()
            return None
        return graph.replay, result

    def clock_state(self) -> ClockState | None:
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
            clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        except pynvml.NVMLError:
            return None
        return ClockState(float(clock), int(reasons))


@dataclass(frozen=True)
class CudaClock:
    """Events around the calls, on the current stream.

    Args:
        before: Untimed work on the stream in front of the first event, such as emptying the cache.
    """

    driver: CudaDriver = field(default_factory=TorchDriver)
    before: Callable[[], None] | None = None
    _graphs: dict[tuple[Callable[[], Any], int], tuple[Callable[[], None], Any] | None] = field(
        default_factory=dict, init=False
    )

    def sample(self, run: Callable[[], Any], calls: int) -> Sample:
        graph = self._graph(run, calls) if calls > 1 else None
        start, end = self.driver.event(), self.driver.event()
        if self.before is not None:
            self.before()
        self.driver.sleep(_LEAD_CYCLES)
        start.record()
        if graph is not None:
            replay, result = graph
            replay()
        else:
            for _ in range(calls):
                result = run()
        end.record()
        end.synchronize()
        return Sample(start.elapsed_time(end) * 1e-3 / calls, result)

    def _graph(self, run: Callable[[], Any], calls: int) -> tuple[Callable[[], None], Any] | None:
        key = (run, calls)
        if key not in self._graphs:
            self._graphs[key] = self.driver.capture(run, calls)
        return self._graphs[key]


def host_call_s(run: Callable[[], Any], driver: CudaDriver) -> float:
    """Seconds from the host's call to the device's end, launches included; the least of five."""
    times = []
    for _ in range(_HOST_CALLS):
        driver.synchronize()
        started = time.perf_counter()
        run()
        driver.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


@dataclass
class ThrottleWatch:
    """Judges each round by the device's clock: it is dropped on evidence, never for its value."""

    driver: CudaDriver
    clocks_mhz: list[float] = field(default_factory=list)
    num_throttled: int = 0

    def round_was_throttled(self) -> bool:
        """Whether the round that just ended ran on lowered clocks."""
        state = self.driver.clock_state()
        if state is None:
            return False
        known = sorted(self.clocks_mhz)
        is_low = bool(known) and state.sm_mhz < LOW_CLOCK * known[len(known) // 2]
        if state.is_throttled or is_low:
            self.num_throttled += 1
            return True
        self.clocks_mhz.append(state.sm_mhz)
        return False
