"""The harness proving its own accuracy on this machine: ``mha-bench selfcheck``.

Every line states what was tested, what was found and what is accepted. ``QUICK`` ends within two
minutes; ``FULL`` is for a night, with the sample sizes that prove the acceptance figures.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.selfcheck.cheats import check_cheats
from harness.selfcheck.demonstration import check_demonstration
from harness.selfcheck.memory_check import check_memory
from harness.selfcheck.outcome import FULL, QUICK, Check, Effort, Outcome
from harness.selfcheck.simulated import (
    check_equivalence,
    check_many_comparisons,
    check_process_modes,
    check_synthetic_noise,
)
from harness.selfcheck.timing import (
    check_equal_functions,
    check_injected_slowdowns,
    check_spins,
    check_under_load,
)

__all__ = ["CHECKS", "FULL", "QUICK", "Check", "Effort", "Outcome", "run_selfcheck"]

CHECKS: dict[str, Check] = {
    "clock": check_spins,
    "equal functions": check_equal_functions,
    "injected slowdowns": check_injected_slowdowns,
    "under load": check_under_load,
    "equivalence": check_equivalence,
    "synthetic noise": check_synthetic_noise,
    "many comparisons": check_many_comparisons,
    "process modes": check_process_modes,
    "memory": check_memory,
    "cheats": check_cheats,
    "demonstration": check_demonstration,
}


def run_selfcheck(effort: Effort) -> Iterator[Outcome]:
    """Run every check, yielding each outcome as it is known.

    The timed work here is single-threaded: it tests the rounds, not the scheduler.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for check in CHECKS.values():
            yield from check(effort)
    finally:
        torch.set_num_threads(threads)
