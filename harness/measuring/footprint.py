"""Peak memory of all implementations of a case, in a process of its own.

Timing wants an allocator that keeps its pages, resident memory one that gives them back, so the two
never share a process.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.inputs.sets import make_inputs
from harness.interface import Inputs
from harness.jobs import Job, MemoryMessage
from harness.measuring import allocator, memory
from harness.measuring.attempts import attempt, status_and_reason
from harness.measuring.modes import make_call
from harness.plugins.registry import load_implementation
from harness.settings import ImplementationSpec
from harness.worker import Channel


def measure_memory(job: Job, channel: Channel) -> None:
    """Peak memory of every implementation of a case, untimed; sends one message for each."""
    allocator.set_for_resident_memory()
    torch.set_num_threads(job.case.threads)
    torch.set_grad_enabled(False)
    inputs = make_inputs(job.case, 0)
    residual = calibrate_here(job.case.device)
    for index, spec in enumerate(job.specs):
        channel.enter(index)
        fields: dict[str, Any] = {}

        def step(spec: ImplementationSpec = spec, found: dict[str, Any] = fields) -> None:
            found.update(_memory_fields(job, spec, inputs, residual))

        problem = attempt(step)
        if problem is not None:
            fields = {"memory_method": f"not measured ({status_and_reason(problem)[1]})"}
        channel.send(MemoryMessage(index, fields))


def calibrate_here(device: str) -> int | None:
    """Error of the resident method in this process, bytes; None where it is not used."""
    if device != "cpu" or memory.resident_method_problem() is not None:
        return None
    return memory.calibrate_resident_peak()


def _memory_fields(
    job: Job, spec: ImplementationSpec, inputs: Inputs, rss_residual_bytes: int | None
) -> dict[str, Any]:
    implementation = load_implementation(spec)
    call = make_call(implementation, job.case, inputs)
    repeats = job.measure.memory_repeats
    peak = memory.measure_peak(call.run, job.case.device, repeats, rss_residual_bytes)
    outputs = call.named_outputs(call.run())
    output_bytes = sum(t.numel() * t.element_size() for t in outputs.values())
    return {
        "peak_alloc_bytes": peak.alloc_bytes,
        "peak_rss_bytes": peak.rss_bytes,
        "memory_method": peak.method,
        "output_bytes": output_bytes,
        "expected_alloc_bytes": implementation.expected_alloc_bytes(job.case),
        "memory_details": {
            "saved_bytes": _above(peak.live_bytes, output_bytes),
            "workspace_bytes": _above(peak.alloc_bytes, peak.live_bytes),
            "repeats_agree": peak.repeats_agree,
            "rss_residual_bytes": peak.rss_residual_bytes,
            "reserved_bytes": peak.reserved_bytes,
            "requested_bytes": peak.requested_bytes,
            "device_bytes": peak.device_bytes,
        },
    }


def _above(whole: int | None, part: int | None) -> int | None:
    """What of the whole is beyond the part; None where one is unknown."""
    return None if whole is None or part is None else max(0, whole - part)
