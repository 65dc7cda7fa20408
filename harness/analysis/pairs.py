"""Which rounds pair with which, and what the run's own control says about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.cells import KEY, worst_status
from harness.dependence import Array, is_dependent
from harness.rows import Status
from harness.statistics import Effect, effect_of, paired_differences
from harness.verdicts import Control, control_of

Times = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class CasePairs:
    """The samples of one case that may be compared: those of implementations that are ``ok``.

    Args:
        baseline: The implementation that the harness compared the others with, where it is ``ok``.
        by_process: ``[process][implementation]`` the times ``[round][call]`` of that process.
        noisy: Why no comparison of this case can be judged; empty when it can.
    """

    case_key: str
    baseline: str | None
    by_process: Mapping[str, Mapping[str, Times]]
    noisy: str = ""

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
    return CasePairs(case_key, baseline, by_process, _noise(usable))


def _noise(rows: pd.DataFrame) -> str:
    flags = {flag for text in rows["flags"] for flag in text.split("; ")}
    return next((flag for flag in sorted(flags) if flag.startswith("noise")), "")


def control_of_run(rows: pd.DataFrame) -> Control:
    """The run's own control: every baseline against its shadow."""
    shadowed = rows[rows["is_baseline"].astype(bool) & (rows["status"] == Status.OK.value)]
    return control_of(
        [
            paired_differences(shadow, times)
            for times, shadow in zip(shadowed["times_s"], shadowed["shadow_times_s"], strict=True)
        ]
    )


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
