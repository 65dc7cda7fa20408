"""Which rounds pair with which, and what the run's own control says about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.cells import KEY, worst_status
from harness.dependence import Array, is_dependent
from harness.rows import Status
from harness.statistics import (
    Effect,
    effect_of,
    order_statistic_interval,
    paired_differences,
)
from harness.verdicts import Control, control_of

NOISY_MARGIN = 0.10
# What harness.guards and harness.bench call their findings.
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

    def differences(self, implementation: str, reference: str) -> list[Array]:
        """Differences ``[round]`` of each process that measured both."""
        return [
            paired_differences(times[implementation], times[reference])
            for times in self.by_process.values()
            if implementation in times and reference in times
        ]

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


def pairs_by_case(rows: pd.DataFrame) -> dict[str, CasePairs]:
    """The comparable samples of every case, cases without any included."""
    return {str(key): _pairs(str(key), group) for key, group in rows.groupby("case_key", sort=True)}


def _pairs(case_key: str, rows: pd.DataFrame) -> CasePairs:
    statuses = rows.groupby("implementation")["status"].agg(worst_status)
    usable = rows[rows["implementation"].isin(statuses.index[statuses == Status.OK.value])]
    by_process: dict[str, dict[str, Times]] = {}
    for process, name, times in zip(
        usable["process"], usable["implementation"], usable["times_s"], strict=True
    ):
        if times:
            by_process.setdefault(process, {})[name] = times
    baselines = usable.loc[usable["is_baseline"].astype(bool), "implementation"]
    baseline = str(baselines.mode().iloc[0]) if len(baselines) else None
    shadows, implausible = tuple(_shadows(usable)), _implausible(usable)
    return CasePairs(case_key, baseline, by_process, _noise(usable), shadows, implausible)


def _noise(rows: pd.DataFrame) -> str:
    flags = {flag for text in rows["flags"] for flag in text.split("; ")}
    return next((flag for flag in sorted(flags) if flag.startswith(NOISE_FLAG)), "")


def _implausible(rows: pd.DataFrame) -> frozenset[str]:
    """Implementations that beat the machine's ceiling, unless the ceiling was measured under load."""
    found = rows["flags"].str.contains(CEILING_FLAG) & ~rows["flags"].str.contains(LOAD_FLAG)
    return frozenset(rows.loc[found.astype(bool), "implementation"])


def control_of_run(rows: pd.DataFrame) -> Control:
    """The run's own control: every baseline against its shadow.

    The noise floor is that of cases without the flag of noise, where there are any: noisy cases
    have a margin of their own.
    """
    noisy = rows["flags"].str.contains(rf"(?:^|; ){NOISE_FLAG}", regex=True).astype(bool)
    return control_of(_shadows(rows), quiet=_shadows(rows[~noisy]))


def _shadows(rows: pd.DataFrame) -> list[Array]:
    shadowed = rows[rows["is_baseline"].astype(bool) & (rows["status"] == Status.OK.value)]
    return [
        paired_differences(shadow, times)
        for times, shadow in zip(shadowed["times_s"], shadowed["shadow_times_s"], strict=True)
    ]


def log_times(rows: pd.DataFrame) -> dict[tuple[str, str], list[Array]]:
    """Logs of the rounds' minima ``[round]`` by process, of cells whose passes are all ok."""
    found: dict[tuple[str, str], list[Array]] = {}
    for (key, name), group in rows.groupby(KEY):
        if (group["status"] == Status.OK.value).all() and (group["num_rounds"] > 0).all():
            found[(str(key), str(name))] = [
                np.log(np.asarray([min(calls) for calls in times], float))
                for times in group["times_s"]
            ]
    return found
