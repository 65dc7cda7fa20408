"""Peak memory of blocks whose size is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from harness.measuring import allocator, memory
from harness.selfcheck.outcome import Effort, Outcome
from harness.worker import Channel, ForkServer, Limits

_MIB = 2**20
_SIZES_MIB = (1, 4, 16, 64, 256)


def check_memory(effort: Effort) -> list[Outcome]:
    """In a worker of its own, whose allocator is set for the purpose."""
    messages = ForkServer().run(f"{__name__}:send_outcomes", None, Limits())
    return [message for message in messages if isinstance(message, Outcome)]


def send_outcomes(payload: object, channel: Channel) -> None:
    """Worker target: one outcome per block and method."""
    allocator.set_for_resident_memory()
    torch.ones(64 * _MIB)  # starts the threads, whose stacks are not the blocks'
    for name, expected, run in _blocks():
        found = memory.allocator_events(run).peak_bytes
        figure = f"{found - expected:+d} bytes"
        passed = found == expected
        channel.send(Outcome(f"memory, {name}, allocator", figure, "exact", passed))
        channel.send(_resident_outcome(name, expected, run))


def _resident_outcome(name: str, expected: int, run: Callable[[], Any]) -> Outcome:
    problem = memory.resident_method_problem()
    label, accepted = f"memory, {name}, resident", "within 0.5 MiB or 1 %"
    if problem is not None:
        return Outcome(label, f"can't be measured here: {problem}", accepted, True)
    error = sorted(memory.resident_peak(run) for _ in range(3))[1] - expected
    passed = abs(error) <= max(_MIB // 2, expected // 100)
    return Outcome(label, f"{error / _MIB:+.2f} MiB", accepted, passed)


def _blocks() -> Iterator[tuple[str, int, Callable[[], Any]]]:
    for mib in _SIZES_MIB:
        yield f"{mib} MiB", mib * _MIB, partial(_block, mib)
    yield "8 MiB freed before 4 MiB", 8 * _MIB, _one_after_the_other
    yield "4 MiB inside 8 MiB", 12 * _MIB, lambda: (_block(8), _block(4))


def _one_after_the_other() -> torch.Tensor:
    _block(8)
    return _block(4)


def _block(mib: int) -> torch.Tensor:
    return torch.ones(mib * _MIB, dtype=torch.uint8)
