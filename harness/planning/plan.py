"""What a sweep will do: its cases, the points it leaves out and why, and how long it takes.

Pure: the same configuration gives the same plan, without torch and without touching the disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from harness.attention import Case
from harness.cost import flop_count, needed_bytes
from harness.distributions import check_case_distribution
from harness.errors import InvalidValueError
from harness.planning.axes import AxisValue
from harness.planning.config import RunConfig
from harness.settings import ImplementationSpec


@dataclass(frozen=True)
class InvalidPoint:
    """A point that is not measured, with the axes that were asked for."""

    axes: Mapping[str, AxisValue]
    reason: str


@dataclass(frozen=True)
class Plan:
    """What a sweep will do.

    Args:
        cases: Every case once, in the order of the axes.
        invalid: Points that are left out.
        implementations: Measured on every case.
        passes: Fresh processes per case.
        eta_s: Estimated seconds for all of it; rough, and an upper bound rather than a lower.
    """

    cases: tuple[Case, ...]
    invalid: tuple[InvalidPoint, ...]
    implementations: tuple[ImplementationSpec, ...]
    passes: int
    eta_s: float

    @property
    def pairs(self) -> int:
        """Rows that the whole plan yields."""
        return len(self.cases) * len(self.implementations) * self.passes


def make_plan(config: RunConfig) -> Plan:
    """Cross points and axes, drop duplicates, and sort out what can't be measured.

    Raises:
        InvalidValueError: no point at all can be measured; says why the first one can't.
    """
    cases: dict[Case, None] = {}
    invalid = []
    first_error: InvalidValueError | None = None
    for axes in _points(config):
        try:
            cases[_feasible_case(axes, config)] = None
        except InvalidValueError as error:
            invalid.append(InvalidPoint(axes, str(error)))
            first_error = first_error or error
    if first_error is not None and not cases:
        raise first_error
    return Plan(
        cases=tuple(cases),
        invalid=tuple(invalid),
        implementations=config.implementations,
        passes=config.measure.passes,
        eta_s=_sweep_s(cases, config),
    )


def _points(config: RunConfig) -> Iterator[dict[str, AxisValue]]:
    for point in config.points or ({},):
        axes = {**config.axes, **point}
        for values in itertools.product(*axes.values()):
            yield dict(zip(axes, values, strict=True))


def _feasible_case(axes: Mapping[str, AxisValue], config: RunConfig) -> Case:
    """The case at a point.

    Raises:
        InvalidValueError: the axes contradict each other, or this machine or sweep can't have it.
    """
    given = {axis: value for axis, value in axes.items() if value is not None}
    machine = config.machine
    case = Case.from_dict({"threads": machine.cpu_count} | given)
    check_case_distribution(case)
    if case.threads > machine.cpu_count:
        expected = f"at most {machine.cpu_count} (the CPUs that this process may use)"
        raise InvalidValueError("threads", expected, case.threads)
    if case.config.head_dim < (config.min_head_dim or 0):
        raise InvalidValueError(
            "head_dim", f"at least min_head_dim={config.min_head_dim}", case.config.head_dim
        )
    _require_memory(case, config)
    return case


def _require_memory(case: Case, config: RunConfig) -> None:
    if case.device != "cpu":
        return  # the worker finds out: a card's memory can't be asked without torch
    needed = needed_bytes(case)
    limit = config.memory_limit_bytes or config.machine.memory_bytes
    if needed > limit:
        raise InvalidValueError(
            "memory", f"at most {limit / 2**30:.1f} GiB", f"{needed / 2**30:.1f} GiB needed"
        )


# Fitted on two cores of a server, for a machine a few times slower: the estimate should not promise
# too much. The sweep's own ETA replaces it as soon as cases have been measured.
_FLOPS_PER_S_AND_THREAD = 25e9
_FLOPS_PER_S_OF_A_CARD = 10e12
_START_S = 4.0  # the fork server, and the machine's ceilings
_PROCESS_S = 0.6  # a case's two workers: one that times, one that measures memory
_ORACLE_CALLS = 20  # float64 in small chunks, and its error bound
_CALLS_BESIDES_ROUNDS = 12  # first call, checks of outputs, memory
_WARMUP_CALLS = 3


def _sweep_s(cases: Iterable[Case], config: RunConfig) -> float:
    return _START_S + config.measure.passes * sum(_case_s(case, config) for case in cases)


def _case_s(case: Case, config: RunConfig) -> float:
    """Seconds of one pass of one case, by its FLOPs and the measuring settings."""
    measure, num_implementations = config.measure, len(config.implementations)
    rate = (
        _FLOPS_PER_S_AND_THREAD * case.threads if case.device == "cpu" else _FLOPS_PER_S_OF_A_CARD
    )
    call_s = flop_count(case) / rate
    burst_s = (1 + measure.burst_calls) * max(call_s, measure.min_sample_s)
    rounds_s = min(measure.budget_s, measure.max_rounds * (num_implementations + 1) * burst_s)
    warmup_s = max(measure.warmup_min_s, _WARMUP_CALLS * call_s)
    each_s = warmup_s + _CALLS_BESIDES_ROUNDS * call_s
    return _PROCESS_S + _ORACLE_CALLS * call_s + num_implementations * each_s + rounds_s
