"""Which rounds pair with which, and what the run's own control says about them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.rows import Status
from harness.statistics.dependence import Array, is_dependent
from harness.statistics.intervals import (
    Effect,
    effect_of,
    order_statistic_interval,
    paired_differences,
)
from harness.statistics.verdicts import Control, control_of

NOISY_MARGIN = 0.10
# What harness.measuring.guards and harness.measuring.bench call their findings.
NOISE_FLAG = "noise:"
CEILING_FLAG = "above_ceiling"
LOAD_FLAG = "foreign_load"
Times = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class CasePairs:
    """The samples of one case that may be compared: those of implementations that are ``ok``.

    Args:
        baseline: The implementation that the harness compared the others with, where it is ``ok``.
        by_process: ``[process][implementation]`` the times ``[round][call]`` of that process.
        noisy: The flag that says that too many rounds were disturbed; empty when they weren't.
        shadows: Differences ``[round]`` of the baseline and its copy, by process.
        implausible: Implementations that are quicker than the machine can be.
    """

    case_key: str
    baseline: str | None
    by_process: Mapping[str, Mapping[str, Times]]
    noisy: str = ""
    shadows: tuple[Array, ...] = ()
    implausible: frozenset[str] = frozenset()

    @property
    def implementations(self) -> list[str]:
        return sorted({name for process in self.by_process.values() for name in process})

    @property
    def reference(self) -> str | None:
        """What ratios can be taken against: the baseline, else whatever most processes measured."""
        if self.baseline is not None:
            return self.baseline
        measured = Counter(name for process in self.by_process.values() for name in process)
        return min(measured, key=lambda name: (-measured[name], name), default=None)

    def differences(self, implementation: str, reference: str) -> list[Array]:
        """Differences ``[round]`` of each process that measured both."""
        return [
            paired_differences(times[implementation], times[reference])
            for times in self.by_process.values()
            if implementation in times and reference in times
        ]

    def log_minima(self, implementation: str) -> list[Array]:
        """Logs of the rounds' minima ``[round]`` of each process that measured it."""
        measured = (p[implementation] for p in self.by_process.values() if implementation in p)
        return [np.log([min(calls) for calls in times]) for times in measured if times]

    def effect(self, implementation: str, reference: str, mode_floor: float) -> Effect | None:
        """Log ratio of the two; None where no process measured both."""
        differences = [d for d in self.differences(implementation, reference) if len(d)]
        return effect_of(differences, mode_floor) if differences else None

    def margin(self, margin: float) -> float:
        """The smallest difference that this case can show: raised where it is noisy.

        A disturbed machine still tells 2x from 1x. In a noisy case only what is beyond 10 %, and
        beyond twice what the baseline seems to differ from itself, is called.
        """
        if not self.noisy:
            return margin
        bounds = [order_statistic_interval(d) for d in self.shadows]
        seen = max((max(-b.low, b.high) for b in bounds), default=math.inf)
        return max(margin, NOISY_MARGIN, math.expm1(min(2 * seen, 1.0)))

    def is_dependent(self, implementation: str, reference: str) -> bool:
        return any(is_dependent(d) for d in self.differences(implementation, reference))


class _Line(NamedTuple):
    """What pairing needs of a row; plain Python, for pandas is slow on many small groups."""

    case_key: str
    implementation: str
    status: str
    process: str
    is_baseline: bool
    flags: str
    times_s: Times
    shadow_times_s: Times


def _lines_by_case(rows: pd.DataFrame) -> dict[str, list[_Line]]:
    found: dict[str, list[_Line]] = {}
    for line in map(_Line._make, zip(*(rows[name] for name in _Line._fields), strict=True)):
        found.setdefault(line.case_key, []).append(line)
    return dict(sorted(found.items()))


def pairs_by_case(rows: pd.DataFrame) -> dict[str, CasePairs]:
    """The comparable samples of every case, cases without any included."""
    return {key: _pairs(key, lines) for key, lines in _lines_by_case(rows).items()}


def _pairs(case_key: str, lines: Sequence[_Line]) -> CasePairs:
    failed = {line.implementation for line in lines if line.status != Status.OK}
    usable = [line for line in lines if line.implementation not in failed and line.times_s]
    by_process: dict[str, dict[str, Times]] = {}
    for line in usable:
        by_process.setdefault(line.process, {})[line.implementation] = line.times_s
    baselines = Counter(line.implementation for line in usable if line.is_baseline)
    most = max(baselines.values(), default=0)
    return CasePairs(
        case_key=case_key,
        baseline=min((name for name, n in baselines.items() if n == most), default=None),
        by_process=by_process,
        noisy=next((f for f in sorted(_flags(usable)) if f.startswith(NOISE_FLAG)), ""),
        shadows=tuple(_shadows(usable)),
        implausible=frozenset(line.implementation for line in usable if _is_implausible(line)),
    )


def _flags(lines: Iterable[_Line]) -> set[str]:
    return {flag for line in lines for flag in line.flags.split("; ")}


def _is_implausible(line: _Line) -> bool:
    """Whether it beats the machine's ceiling, unless that may have been measured under load."""
    disturbed = LOAD_FLAG in line.flags or NOISE_FLAG in line.flags
    return CEILING_FLAG in line.flags and not disturbed


def _shadows(lines: Iterable[_Line]) -> list[Array]:
    return [
        paired_differences(line.shadow_times_s, line.times_s)
        for line in lines
        if line.is_baseline and line.status == Status.OK
    ]


def control_of_run(rows: pd.DataFrame) -> Control:
    """The run's own control: every baseline against its shadow.

    The noise floor is that of cases without the flag of noise, where there are any: noisy cases
    have a margin of their own.
    """
    lines = [line for case in _lines_by_case(rows).values() for line in case]
    quiet = [line for line in lines if not any(f.startswith(NOISE_FLAG) for f in _flags([line]))]
    return control_of(_shadows(lines), quiet=_shadows(quiet))


def log_times(rows: pd.DataFrame) -> dict[tuple[str, str], list[Array]]:
    """Logs of the rounds' minima ``[round]`` by process, of cells whose passes are all ok."""
    found: dict[tuple[str, str], list[Array]] = {}
    failed = set()
    for lines in _lines_by_case(rows).values():
        for line in lines:
            key = (line.case_key, line.implementation)
            if line.status != Status.OK or not line.times_s:
                failed.add(key)
                continue
            minima = np.asarray([min(calls) for calls in line.times_s], float)
            found.setdefault(key, []).append(np.log(minima))
    return {key: processes for key, processes in found.items() if key not in failed}
