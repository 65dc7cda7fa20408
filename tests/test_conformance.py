"""The battery as a plug-in author meets it: outcomes, messages, limits, declared failures."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from harness.attention import DType
from harness.conformance import CHECKS, DTYPES, Outcome, Subject, chosen_checks, run_battery
from harness.conformance.planted import Sound
from harness.conformance.planted.arithmetic import DropsLastKeyOfRaggedTile
from harness.conformance.planted.behaviour import SwallowsNan
from harness.errors import InvalidValueError
from harness.interface import AttentionImplementation
from tests.everyone import everyone, load

# Tiles of 3 x 2 turn the battery's longer cases into thousands of tiny steps.
TOO_SLOW = {"chunked_small"}


@everyone
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_implementation_passes_or_declares_an_upstream_failure(name, dtype):
    if name in TOO_SLOW:
        name = "chunked"
    results = run_battery(load(name), (dtype,))
    assert [result for result in results if result.is_failure] == []
    assert sum(result.outcome is Outcome.PASSED for result in results) > 10
    for result in results:
        assert result.detail or result.outcome is Outcome.PASSED
        if result.outcome is Outcome.KNOWN:
            assert "https://" in result.detail


def test_checks_are_named_and_state_their_promise():
    names = [check.__name__ for check in CHECKS]
    assert len(set(names)) == len(names) >= 30
    for check in CHECKS:
        assert check.__name__.startswith("check_")
        assert check.__doc__.partition("\n")[0].endswith(".")


def test_a_failure_names_the_promise_the_shape_and_the_worst_element():
    results = run_battery(DropsLastKeyOfRaggedTile(), (DType.FLOAT32,), stop_at_first=True)
    failed = results[-1]
    assert failed.is_failure
    assert failed.promise.startswith("Every mask means")
    assert failed.detail.startswith("b2-h16x2-s20-k70-float32-bottom_right")
    assert "times what rounding allows at batch" in failed.detail
    assert "query" in failed.detail
    assert "got" in failed.detail
    assert "expected" in failed.detail


class Limited(Sound):
    """Short, narrow, forward only, no masks; refuses everything else."""

    name = "limited"
    dtypes = frozenset({DType.FLOAT32})
    modes = frozenset({"forward"})
    scopes = frozenset({"attention"})
    mask_features = frozenset()
    max_head_dim = 16

    def __init__(self):
        self.head_dims = set()

    def attend(self, c, masks, q, k, v):
        self.head_dims.add(c.head_dim)
        return super().attend(c, masks, q, k, v)


def test_declared_limits_bound_what_is_tested_and_a_skip_carries_its_reason():
    limited = Limited()
    results = {result.check: result for result in run_battery(limited, (DType.FLOAT32,))}
    assert {r.check for r in results.values() if r.is_failure} == set()
    assert max(limited.head_dims) == 16
    assert {15, 16} <= limited.head_dims
    skipped = results["check_gradients"]
    assert skipped.outcome is Outcome.SKIPPED
    assert skipped.detail == "mode=backward (only forward)"
    assert results["check_layers"].detail == "scope=layer (only attention)"
    assert "mask=" in results["check_causality"].detail


def test_a_dtype_that_cannot_be_done_is_skipped_with_the_reason():
    for result in run_battery(Limited(), (DType.BFLOAT16,)):
        if result.check == "check_reasons":
            assert result.outcome is Outcome.PASSED
        elif result.check != "check_gradients_by_differences":
            assert result.outcome is Outcome.SKIPPED
            assert "dtype=bfloat16 (only float32)" in result.detail


class Declared(SwallowsNan):
    known_failures: ClassVar = {"check_nan_in_nan_out[float32]": "loses NaN: https://example.org/1"}


class DeclaredInVain(Sound):
    known_failures: ClassVar = {"check_masks": "fixed long ago: https://example.org/2"}


def test_a_declared_failure_is_known_and_only_in_its_dtype():
    check = ("check_nan_in_nan_out",)
    low, high = run_battery(Declared(), (DType.BFLOAT16, DType.FLOAT32), only=check)
    assert low.outcome is Outcome.FAILED
    assert (high.outcome, high.detail) == (Outcome.KNOWN, "loses NaN: https://example.org/1")


def test_a_declared_failure_that_passes_fails():
    (result,) = run_battery(DeclaredInVain(), (DType.FLOAT32,), only=("check_masks",))
    assert result.is_failure
    assert "passes now" in result.detail


class Raises(AttentionImplementation):
    name = "raises"

    def make_attend(self, case, masks):
        def attend(q, k, v):
            raise ZeroDivisionError("kernel died")

        return attend


def test_an_exception_is_a_failure_in_its_own_words():
    (result,) = run_battery(Raises(), (DType.FLOAT32,), only=("check_lengths",))
    assert result.is_failure
    assert result.detail == "raised ZeroDivisionError: kernel died"


def test_an_unknown_check_is_refused_with_the_names():
    with pytest.raises(InvalidValueError, match=r"only: .*'mask'; choices: .*check_masks"):
        chosen_checks(("mask",))
    assert chosen_checks(()) == CHECKS


def test_results_are_observed_as_they_come_and_the_settings_are_left_alone():
    seen = []
    threads = torch.get_num_threads()
    results = run_battery(Sound(), (DType.FLOAT16,), only=("check_scale",), observe=seen.append)
    assert seen == results
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_two_threads_give_the_same_verdict():
    torch.set_num_threads(2)
    try:
        results = run_battery(load("sdpa"), (DType.FLOAT32,), only=("check_lengths",))
    finally:
        torch.set_num_threads(1)
    assert [result.outcome for result in results] == [Outcome.PASSED]


def test_a_subject_counts_what_it_ran_and_keeps_the_reasons_of_what_it_could_not():
    subject = Subject(Limited(), DType.FLOAT32)
    cells = [{"seq_len": 3}, {"seq_len": 3, "mask": "causal"}, {"inputs": "no such"}]
    assert len(list(subject.supported(cells))) == 1
    assert subject.tally.cases == 1
    assert len(subject.tally.reasons) == 2
