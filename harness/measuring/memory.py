"""Peak memory of one call, above what was there before it.

A separate, untimed measurement in a process of its own, never by polling (a 10 ms poll sees 0 to
100 % of a peak under 16 MiB). Two methods on the CPU that see different things:

``allocator_events``
    The profiler's allocation events of torch's allocator, cumulated. Exact to the byte; blind to
    memory that a kernel takes from the C library itself.
``rss_high_water``
    The kernel's high-water mark of resident memory, reset by writing 5 to /proc/self/clear_refs.
    Sees everything that was touched, within about 0.3 MiB where
    ``allocator.set_for_resident_memory`` holds.

On CUDA the caching allocator's own peak counters (``cuda_allocator``). What can't be measured is
None, with the reason in ``method``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile

from harness.measuring import allocator

_CALIBRATION_BYTES = 64 * 2**20
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Peak:
    """Bytes above the state before the call; None where the method can't run.

    Args:
        alloc_bytes: By the device's allocator, output included.
        live_bytes: Of those, still there when the call has returned: the output, and what is saved
            for the backward pass.
        rss_bytes: By resident memory of the process, output included; CPU only.
        method: Names of the methods, and why one is missing.
        repeats_agree: Whether the repeats gave one allocator peak.
        rss_residual_bytes: Error of the resident method on a known block of 64 MiB.
        reserved_bytes: CUDA only: what the caching allocator took from the device.
        requested_bytes: CUDA only: what was asked of it, before rounding up.
        device_bytes: CUDA only: what the device had less when the call had returned.
    """

    alloc_bytes: int | None
    rss_bytes: int | None
    method: str
    live_bytes: int | None = None
    repeats_agree: bool = True
    rss_residual_bytes: int | None = None
    reserved_bytes: int | None = None
    requested_bytes: int | None = None
    device_bytes: int | None = None


def measure_peak(
    run: Callable[[], Any], device: str, repeats: int = 3, rss_residual_bytes: int | None = None
) -> Peak:
    """Peak memory of ``run``, after one call that sets up whatever it sets up once.

    Args:
        rss_residual_bytes: What ``calibrate_resident_peak`` found in this process, for the record.
    """
    run()
    if device == "cuda":
        return _cuda_peak(run, repeats)
    return replace(_cpu_peak(run, repeats), rss_residual_bytes=rss_residual_bytes)


def _cpu_peak(run: Callable[[], Any], repeats: int) -> Peak:
    events = [allocator_events(run) for _ in range(repeats)]
    live = events[-1].live_bytes
    allocations = [recorded.peak_bytes for recorded in events]
    agree = len(set(allocations)) == 1
    problem = resident_method_problem()
    if problem is not None:
        method = f"allocator_events (rss_high_water: {problem})"
        return Peak(max(allocations), None, method, live, agree)
    resident = sorted(resident_peak(run) for _ in range(repeats))
    return Peak(
        max(allocations),
        resident[len(resident) // 2],
        "allocator_events + rss_high_water",
        live,
        agree,
    )


@dataclass(frozen=True)
class AllocatorEvents:
    """Bytes by torch's CPU allocator during one call: the highest sum, and the last."""

    peak_bytes: int
    live_bytes: int


def allocator_events(run: Callable[[], Any]) -> AllocatorEvents:
    """Cumulate torch's CPU allocations less releases over one call, its result kept alive."""
    gc.collect()
    with profile(profile_memory=True, use_kineto=True) as recorded:
        result = run()
    del result
    current = peak = 0
    for event in recorded.kineto_results.events():
        if event.name() == "[memory]" and event.device_type() == DeviceType.CPU:
            current += event.nbytes()
            peak = max(peak, current)
    return AllocatorEvents(peak, current)


def resident_method_problem() -> str | None:
    """Why the resident high-water mark can't be used here; None: it can."""
    if not _STATUS.exists():
        return "this system has no /proc"
    try:
        _CLEAR_REFS.write_text("5")
    except OSError as error:
        return f"/proc/self/clear_refs is not writable ({error.strerror})"
    return None


def resident_peak(run: Callable[[], Any]) -> int:
    """Highest resident memory during one call above that before it, in bytes."""
    gc.collect()
    allocator.trim()
    _CLEAR_REFS.write_text("5")
    before = _status_bytes("VmRSS")
    result = run()
    peak = _status_bytes("VmHWM")
    del result
    return max(0, peak - before)


def calibrate_resident_peak() -> int:
    """Error of ``resident_peak`` on a touched block of 64 MiB, in bytes."""
    block = _CALIBRATION_BYTES // 8
    return resident_peak(lambda: torch.ones(block, dtype=torch.float64)) - _CALIBRATION_BYTES


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {field}")


def _cuda_peak(run: Callable[[], Any], repeats: int) -> Peak:
    readings = [_one_cuda_peak(run) for _ in range(repeats)]
    allocated = {reading[0] for reading in readings}
    return Peak(
        max(allocated),
        None,
        "cuda_allocator",
        readings[-1][2],
        len(allocated) == 1,
        reserved_bytes=max(reading[1] for reading in readings),
        requested_bytes=max(reading[3] for reading in readings),
        device_bytes=max(reading[4] for reading in readings),
    )


def _one_cuda_peak(run: Callable[[], Any]) -> tuple[int, int, int, int, int]:
    """Above the state before: allocated, reserved, still live, requested, and the device's own."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, free_before = torch.cuda.memory_stats(), torch.cuda.mem_get_info()[0]
    result = run()
    torch.cuda.synchronize()
    after, free_after = torch.cuda.memory_stats(), torch.cuda.mem_get_info()[0]
    del result

    def grown(name: str, figure: str) -> int:
        return int(after[f"{name}.all.{figure}"] - before[f"{name}.all.current"])

    return (
        grown("allocated_bytes", "peak"),
        grown("reserved_bytes", "peak"),
        grown("allocated_bytes", "current"),
        grown("requested_bytes", "peak"),
        free_before - free_after,
    )
