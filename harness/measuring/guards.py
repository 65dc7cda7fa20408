"""What the machine did during the rounds: evidence on which a round, or a case, is flagged.

Nothing is ever removed for its value. A round is flagged when fixed work timed in it ran off its
usual time (canary), when the scheduler took the processor away (involuntary switches), when the
hypervisor did (steal), or when other processes used the machine (foreign load). Many flagged rounds
make the case's comparisons ``inconclusive(noise)``.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.attention import Case
from harness.tensors import torch_dtype

CANARY_TOLERANCE = 0.05
_CANARY_CALLS = 3  # the least counts, as it does of a burst: one hiccup is no slow round
NOISY_SHARE = 0.2
# Involuntary switches per second of processor time: about 30 on a quiet machine, 125 and more where
# others take whole scheduler slices (4 or 8 ms). Fewer than three in a round say nothing.
_SWITCHES_PER_CPU_S = 80.0
_FEW_SWITCHES = 3
_STEAL_SHARE = 0.02
FOREIGN_CORES = 0.25
_MAX_DROPPED = 20
_PAUSE_S = 0.5
_PROC_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class _Reading:
    wall_s: float
    own_cpu_s: float
    switches: int
    busy_s: float | None
    steal_s: float | None


@dataclass
class RoundGuard:
    """Watches rounds; read it when they are over.

    Args:
        canary: Fixed work of about a millisecond, timed at the start of each round, the least of
            three; None for none.
        was_throttled: Asked after each round whether the device ran on lowered clocks.
    """

    canary: Callable[[], Any] | None = None
    was_throttled: Callable[[], bool] = lambda: False
    num_dropped: int = 0
    canary_times_s: list[float] = field(default_factory=list)
    switches_per_cpu_s: list[float] = field(default_factory=list)
    steal_share: list[float] = field(default_factory=list)
    _first: _Reading | None = field(default=None, init=False)
    _start: _Reading | None = field(default=None, init=False)
    _latest: _Reading | None = field(default=None, init=False)

    def begin_round(self) -> None:
        if self.canary is not None:
            self.canary()  # brings its data back into the cache
            self.canary_times_s.append(min(self._canary_s() for _ in range(_CANARY_CALLS)))
        self._start = _read()
        self._first = self._first or self._start

    def _canary_s(self) -> float:
        assert self.canary is not None, "asked only where there is one"
        started = time.perf_counter()
        self.canary()
        return time.perf_counter() - started

    def end_round(self) -> None:
        start, end = self._start, _read()
        assert start is not None, "end_round follows begin_round"
        wall_s = max(end.wall_s - start.wall_s, 1e-9)
        switches, cpu_s = end.switches - start.switches, end.own_cpu_s - start.own_cpu_s
        is_rate = switches >= _FEW_SWITCHES and cpu_s > 0
        self.switches_per_cpu_s.append(switches / cpu_s if is_rate else 0.0)
        if end.steal_s is not None and start.steal_s is not None:
            self.steal_share.append((end.steal_s - start.steal_s) / wall_s)
        self._latest = end

    def must_drop_round(self) -> bool:
        """Whether the round that just ended has to be made again: throttled, and retries are left.

        Dropped on the device's own evidence, never for a value; its figures here go with it.
        """
        if self.num_dropped >= _MAX_DROPPED or not self.was_throttled():
            return False
        self.num_dropped += 1
        for figures in (self.canary_times_s, self.switches_per_cpu_s, self.steal_share):
            if figures:
                figures.pop()
        time.sleep(_PAUSE_S)
        return True

    def flagged_rounds(self) -> dict[str, tuple[int, ...]]:
        """Indices of the flagged rounds, by guard; guards without findings are left out."""
        found = {
            "canary": _indices(self._canary_deviation() > CANARY_TOLERANCE),
            "switches": _indices(np.array(self.switches_per_cpu_s) > _SWITCHES_PER_CPU_S),
            "steal": _indices(np.array(self.steal_share) > _STEAL_SHARE),
        }
        return {name: rounds for name, rounds in found.items() if rounds}

    def _canary_deviation(self) -> Any:
        times = np.array(self.canary_times_s)
        return np.abs(times / np.median(times) - 1.0) if times.size else times

    def foreign_cores(self) -> float | None:
        """Mean number of cores that other processes kept busy; None where it can't be read."""
        first, latest = self._first, self._latest
        if first is None or latest is None or first.busy_s is None or latest.busy_s is None:
            return None
        busy_s = latest.busy_s - first.busy_s
        own_s = latest.own_cpu_s - first.own_cpu_s
        return max(0.0, busy_s - own_s) / max(latest.wall_s - first.wall_s, 1e-9)

    def flags(self) -> tuple[str, ...]:
        """Findings about the case as a whole."""
        found = []
        rounds = len(self.switches_per_cpu_s)
        flagged = {index for indices in self.flagged_rounds().values() for index in indices}
        if rounds and len(flagged) > NOISY_SHARE * rounds:
            found.append(f"noise: {len(flagged)} of {rounds} rounds flagged")
        if self.num_dropped:
            found.append(f"throttled: {self.num_dropped} rounds made again after lowered clocks")
        foreign = self.foreign_cores()
        if foreign is not None and foreign > FOREIGN_CORES:
            found.append(f"foreign_load: {foreign:.2f} cores used by other processes")
        return tuple(found)


def _read() -> _Reading:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    busy_s, steal_s = _machine_cpu_s()
    own_s = usage.ru_utime + usage.ru_stime
    return _Reading(time.perf_counter(), own_s, usage.ru_nivcsw, busy_s, steal_s)


def _machine_cpu_s() -> tuple[float | None, float | None]:
    """Seconds that all processors together were busy, and were stolen, since the start."""
    try:
        first_line = _PROC_STAT.read_text().splitlines()[0]
    except OSError:
        return None, None
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, first_line.split()[1:])
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / ticks_per_s, steal / ticks_per_s


def _indices(flags: Any) -> tuple[int, ...]:
    return tuple(int(index) for index in np.flatnonzero(flags))


_CANARY_S = 1e-3


def make_canary(case: Case) -> Callable[[], Any] | None:
    """A product of two square matrices of the case's dtype that takes 0.4 to 3 ms.

    Of the case's kind, for a machine can be slow in just that: on processors with AMX the loads of
    matrix tiles have been seen four times slower for seconds, which no integer loop notices.
    """
    if case.device != "cpu":
        return None
    dtype = torch_dtype(case.config.dtype)
    generator = torch.Generator().manual_seed(0)
    size = 128
    while True:
        matrix = torch.randn(size, size, generator=generator).to(dtype)
        out = torch.empty_like(matrix)

        def product(matrix: torch.Tensor = matrix, out: torch.Tensor = out) -> None:
            with torch.no_grad():
                torch.mm(matrix, matrix, out=out)

        product()
        started = time.perf_counter()
        product()
        if time.perf_counter() - started >= _CANARY_S / 2.5 or size >= 2048:
            return product
        size *= 2
