"""How a sweep measures: the settings that travel from the configuration into the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ImplementationSpec:
    """One implementation as configured.

    Args:
        name: Its name in every row.
        target: ``module:Class`` (or ``module:function`` that returns an implementation).
        options: Keyword arguments of the target.
    """

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """The protocol's parameters; results/README.md and conf/measure say which preset sets which.

    Args:
        passes: Fresh processes per case.
        budget_s: Seconds of timed rounds per case and pass.
        precision: Wanted half-width of the ratio's 95 % interval, as a fraction; at 0 only the
            number of rounds or the budget ends them.
        margin: Smallest difference that matters to the user, as a fraction.
        call_timeout_s: An implementation that is in hand for longer than this, without a call
            ending, is ended as ``timeout``.
        min_sample_s: Shortest timed sample; quicker calls are timed K at a time.
        max_burst_s: A burst of timed calls is not made longer than this.
        burst_calls: Calls in a burst, at most.
        warmup_min_s: Least warm-up per implementation.
        warmup_max_s: Warm-up is cut here and the row flagged ``no_steady_state``.
        input_sets: Distinct inputs that the rounds rotate through.
        max_rounds: Rounds are not made beyond this many.
        memory_repeats: Runs of the memory measurement, which must agree.
    """

    passes: int = 1
    budget_s: float = 2.0
    precision: float = 0.03
    margin: float = 0.03
    call_timeout_s: float = 60.0
    min_sample_s: float = 200e-6
    max_burst_s: float = 0.05
    burst_calls: int = 6
    warmup_min_s: float = 0.2
    warmup_max_s: float = 3.0
    input_sets: int = 4
    max_rounds: int = 200
    memory_repeats: int = 3
