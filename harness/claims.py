"""What the implementations say that they can't do, asked once for a whole sweep.

Asked in one process for all cases: some need a package whose import takes longer than a case.
"""

from __future__ import annotations

import traceback
from typing import Any

import torch

from harness.attempts import attempt, status_and_reason
from harness.attention import Case
from harness.jobs import ReasonsJob, ReasonsMessage
from harness.registry import load_implementation
from harness.settings import ImplementationSpec
from harness.worker import Channel


def find_reasons(job: ReasonsJob, channel: Channel) -> None:
    """Ask every implementation about every case; sends one message per implementation."""
    for index, spec in enumerate(job.specs):
        channel.enter(index)
        found: dict[str, tuple[str, ...]] = {}

        def step(spec: ImplementationSpec = spec, found: dict[str, Any] = found) -> None:
            implementation = load_implementation(spec)
            for case in job.cases:
                reasons = (*device_reasons(case), *implementation.unsupported_reasons(case))
                if reasons:
                    found[case.key] = tuple(reasons)

        problem = attempt(step)
        if problem is None:
            channel.send(ReasonsMessage(index, found))
        else:
            log = "".join(traceback.format_exception(problem))
            status, reason = status_and_reason(problem)
            channel.send(ReasonsMessage(index, {}, reason, status, log))


def device_reasons(case: Case) -> tuple[str, ...]:
    """Why the case's device can't be used on this machine; empty: it can."""
    if case.device == "cuda" and not torch.cuda.is_available():
        return (
            f"device=cuda (this machine has no CUDA device that torch {torch.__version__} sees)",
        )
    return ()
