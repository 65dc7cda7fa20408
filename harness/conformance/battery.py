"""Runs the checks on an implementation, and says what became of each.

::

    from harness.conformance import run_battery
    for result in run_battery(MyKernel()):
        print(result)

A check is a function ``check_*(subject)`` whose docstring states the promise; it returns, or raises
``CheckFailure`` with the case and the worst element. What an implementation says that it cannot do
is not tested; a check with nothing to test is skipped with that reason. An implementation may
declare failures that are not its own (``known_failures``: check name, ``name[dtype]`` or
``name[device]``, to a reason with its issue); they are strict: one that no longer fails, fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch

from harness.attention import DType, Scope
from harness.conformance import behaviour, correctness, invariances, robustness
from harness.conformance.subject import CheckFailure, Subject, Tally
from harness.errors import InvalidValueError
from harness.interface import Implementation

Check = Callable[[Subject], None]

# Small and telling first.
CHECKS: tuple[Check, ...] = (
    behaviour.check_reasons,
    correctness.check_sizes_that_all_differ,
    correctness.check_masks,
    correctness.check_lengths,
    correctness.check_grouped_heads,
    correctness.check_scale,
    correctness.check_head_dims,
    correctness.check_empty_sizes,
    robustness.check_rows_without_keys,
    robustness.check_garbage_below_masks,
    robustness.check_additive_masks,
    robustness.check_score_range,
    behaviour.check_keeps_nothing,
    behaviour.check_same_twice,
    robustness.check_strides,
    robustness.check_nan_in_nan_out,
    behaviour.check_bad_tensors_are_refused,
    correctness.check_distributions,
    correctness.check_log_sum_exp,
    invariances.check_keys_have_no_order,
    invariances.check_values_are_averaged,
    invariances.check_split_invariance,
    invariances.check_independence,
    invariances.check_causality,
    invariances.check_shared_heads,
    correctness.check_gradients,
    correctness.check_gradients_by_differences,
    correctness.check_modes_agree,
    behaviour.check_dropout,
    correctness.check_layers,
    correctness.check_layer_gradients,
)

DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


class Outcome(StrEnum):
    """What became of one check at one dtype."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # nothing that the implementation can do
    KNOWN = "known failure"  # declared by the implementation, with its issue


@dataclass(frozen=True)
class CheckResult:
    """One check at one dtype.

    Args:
        check: Its name.
        promise: What it checks, in a sentence.
        detail: The first failure, the reason of a skip, or the declared issue.
        cases: Cases that were run.
    """

    check: str
    promise: str
    dtype: DType
    outcome: Outcome
    detail: str
    cases: int
    time_s: float

    @property
    def is_failure(self) -> bool:
        return self.outcome is Outcome.FAILED


def run_battery(
    implementation: Implementation,
    dtypes: Iterable[DType] = DTYPES,
    device: str = "cpu",
    only: Iterable[str] = (),
    stop_at_first: bool = False,
    observe: Callable[[CheckResult], None] = lambda result: None,
) -> list[CheckResult]:
    """Results of all checks, or of those named in ``only``, at each dtype.

    Args:
        stop_at_first: End a dtype's checks with its first failure.
        observe: Called with each result as it comes.

    Raises:
        InvalidValueError: ``only`` names an unknown check.
    """
    results = []
    for dtype in dtypes:
        for result in _of_dtype(implementation, dtype, device, chosen_checks(only)):
            results.append(result)
            observe(result)
            if stop_at_first and result.is_failure:
                break
    return results


def chosen_checks(only: Iterable[str]) -> tuple[Check, ...]:
    """All checks, or those of the given names."""
    named = {check.__name__: check for check in CHECKS}
    for name in only:
        if name not in named:
            raise InvalidValueError("only", "the name of a check", name, named)
    return tuple(named[name] for name in only) or CHECKS


def _of_dtype(
    implementation: Implementation, dtype: DType, device: str, checks: Iterable[Check]
) -> Iterator[CheckResult]:
    attention = Subject(implementation, dtype, device, threads=torch.get_num_threads())
    layer = Subject(implementation, dtype, device, Scope.LAYER, attention.threads)
    plain = {"seq_len": 4}
    able = not implementation.unsupported_reasons(attention.case(**plain))
    for check in checks:
        yield _run(check, attention if able else layer)


def _run(check: Check, subject: Subject) -> CheckResult:
    tally = Tally()
    started = time.perf_counter()
    outcome, detail = _outcome(check, Subject(**{**vars(subject), "tally": tally}))
    if outcome is Outcome.PASSED and not tally.cases:
        outcome = Outcome.SKIPPED
        detail = next(iter(dict.fromkeys(tally.reasons)), "nothing to test")
    outcome, detail = _declared(check, subject, outcome, detail)
    promise = (check.__doc__ or "").partition("\n")[0]
    elapsed = time.perf_counter() - started
    return CheckResult(
        check.__name__, promise, subject.dtype, outcome, detail, tally.cases, elapsed
    )


def _outcome(check: Check, subject: Subject) -> tuple[Outcome, str]:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # the oracle's products here are small
        check(subject)
    except CheckFailure as failure:
        return Outcome.FAILED, str(failure)
    except Exception as error:  # an implementation may raise anything: that is a finding
        return Outcome.FAILED, f"raised {type(error).__name__}: {error}"
    finally:
        torch.set_num_threads(threads)
    return Outcome.PASSED, ""


def _declared(check: Check, subject: Subject, outcome: Outcome, detail: str) -> tuple[Outcome, str]:
    known = getattr(subject.implementation, "known_failures", {})
    name = check.__name__
    names = (f"{name}[{subject.dtype}]", f"{name}[{subject.device}]", name)
    reason = next((known[n] for n in names if n in known), None)
    if reason is None or outcome is Outcome.SKIPPED:
        return outcome, detail
    if outcome is Outcome.FAILED:
        return Outcome.KNOWN, str(reason)
    return Outcome.FAILED, f"declared as a known failure, but it passes now: {reason}"
