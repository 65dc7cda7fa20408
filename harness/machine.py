"""What a plan must know of the machine that measures; found without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

_CONTROL_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """Limits that a plan's points must keep.

    Args:
        cpu_count: CPUs that this process may use (its affinity mask).
        memory_bytes: Main memory that is free for it.
    """

    cpu_count: int
    memory_bytes: int

    @classmethod
    def here(cls) -> Machine:
        return cls(usable_cores(), available_memory_bytes())


def usable_cores() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory_bytes() -> int:
    """Free main memory, within the control group's limit where there is one."""
    available = psutil.virtual_memory().available
    try:
        limit = (_CONTROL_GROUP / "memory.max").read_text().strip()
        used = int((_CONTROL_GROUP / "memory.current").read_text())
    except OSError:
        return available
    return available if limit == "max" else min(available, max(int(limit) - used, 0))
