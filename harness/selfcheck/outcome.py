"""What one test of the harness found, and what would have been accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """One line of the self-check.

    Args:
        name: What was tested.
        figure: What was found, in words and numbers.
        accepted: What is accepted.
        passed: Whether it is.
    """

    name: str
    figure: str
    accepted: str
    passed: bool


@dataclass(frozen=True)
class Effort:
    """How much a self-check does.

    Args:
        comparisons: A/A comparisons; a tenth as many of each injected slowdown.
        slowdowns: Injected slowdowns of 2 %, for the power.
        simulations: Simulated comparisons per kind of noise.
        loaded_comparisons: Comparisons while other processes load all cores.
    """

    comparisons: int
    slowdowns: int
    simulations: int
    loaded_comparisons: int


QUICK = Effort(comparisons=160, slowdowns=30, simulations=400, loaded_comparisons=30)
FULL = Effort(comparisons=400, slowdowns=100, simulations=4000, loaded_comparisons=400)

Check = Callable[[Effort], list[Outcome]]
