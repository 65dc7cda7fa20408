"""What the implementations say that they can't do, asked once for a whole sweep.

Asked in one process for all cases: some need a package whose import takes longer than a case.
"""

from __future__ import annotations

import traceback
from typing import Any

from harness.interface import missing_device
from harness.jobs import ReasonsJob, ReasonsMessage
from harness.measuring.attempts import attempt, status_and_reason
from harness.plugins.registry import load_implementation
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
                said = (*missing_device(case.device), *implementation.unsupported_reasons(case))
                if said:
                    found[case.key] = tuple(dict.fromkeys(said))

        problem = attempt(step)
        if problem is None:
            channel.send(ReasonsMessage(index, found))
        else:
            log = "".join(traceback.format_exception(problem))
            status, reason = status_and_reason(problem)
            channel.send(ReasonsMessage(index, {}, reason, status, log))
