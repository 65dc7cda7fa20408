"""The conformance battery: does an implementation mean by attention what everyone else does?

``mha-bench check NAME`` runs it for a name of the registry or for ``module:Class``; ``run_battery``
is the same from Python. ``mha-bench check --mutants`` shows that it catches what it should: every
planted defect of ``mutants`` is rejected, and no correct implementation is.
"""

from harness.conformance.battery import (
    CHECKS,
    DTYPES,
    Check,
    CheckResult,
    Outcome,
    chosen_checks,
    run_battery,
)
from harness.conformance.subject import CheckFailure, Subject

__all__ = [
    "CHECKS",
    "DTYPES",
    "Check",
    "CheckFailure",
    "CheckResult",
    "Outcome",
    "Subject",
    "chosen_checks",
    "run_battery",
]
