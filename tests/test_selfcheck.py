"""The self-check: its checks work, fail when they should, and say what they found.

The timed ones run here small and with wide margins; with the figures that prove them, at night.
"""

import math

import numpy as np
import pytest
import torch

from harness import selfcheck
from harness.measuring.guards import RoundGuard
from harness.selfcheck import cheats, demonstration, memory_check, simulated, timing
from harness.selfcheck.outcome import Effort

FEW = Effort(comparisons=20, slowdowns=10, simulations=200, loaded_comparisons=4)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "check",
    [
        simulated.check_synthetic_noise,
        simulated.check_equivalence,
        simulated.check_many_comparisons,
        simulated.check_process_modes,
    ],
)
def test_simulated_checks_reach_their_figures(check):
    outcomes = check(FEW)
    assert outcomes
    assert [o for o in outcomes if not o.passed] == []


def test_a_wrong_interval_is_noticed(monkeypatch):
    from harness.statistics.intervals import Interval

    too_narrow = lambda effect: Interval(effect.centre - 1e-3, effect.centre + 1e-3)  # noqa: E731
    monkeypatch.setattr(simulated, "interval", too_narrow)
    outcomes = [o for o in simulated.check_synthetic_noise(FEW) if "intervals" in o.name]
    assert not any(o.passed for o in outcomes)


def test_a_flag_that_is_never_raised_is_noticed(monkeypatch):
    monkeypatch.setattr(simulated, "_is_flagged", lambda d: False)
    failed = {o.name for o in simulated.check_synthetic_noise(FEW) if not o.passed}
    assert "simulated drift: flag" in failed


def test_every_cheat_is_refused_and_the_honest_one_is_not():
    outcomes = cheats.check_cheats(FEW)
    assert len(outcomes) == len(cheats.CHEATS) + 1
    assert [o for o in outcomes if not o.passed] == []


def test_memory_of_known_blocks_is_right():
    outcomes = memory_check.check_memory(FEW)
    assert len(outcomes) == 14
    assert [o for o in outcomes if not o.passed] == []


def test_an_injected_slowdown_of_half_is_seen_and_measured():
    comparison = timing.compare_once(0.5, seed=1)
    assert comparison.rejects_equality
    assert math.exp(comparison.centre) == pytest.approx(1.5, abs=0.1)


def compared(centre, spread=0.001, rounds=20):
    """A comparison as if measured: its rounds lie around ``centre``."""
    differences = np.random.default_rng(0).normal(centre, spread, rounds)
    return timing.Comparison(differences, RoundGuard(), measured_s=0.1)


@pytest.mark.parametrize(
    ("centre", "passed"), [(0.02, True), (0.0, False), (-0.02, False)], ids=["seen", "un", "wrong"]
)
def test_the_power_at_two_percent_can_fail(monkeypatch, centre, passed):
    monkeypatch.setattr(timing, "compare_once", lambda *args: compared(centre))
    assert timing._power_at_two_percent(FEW).passed is passed


@pytest.mark.parametrize(("error", "passed"), [(0.001, True), (0.02, False)])
def test_a_biased_ratio_is_noticed(monkeypatch, error, passed):
    slower = lambda slowdown, seed: compared(math.log1p(slowdown + error), 0.01)  # noqa: E731
    monkeypatch.setattr(timing, "compare_once", slower)
    assert all(o.passed is passed for o in timing._accuracy(FEW))


def test_equal_functions_are_hardly_ever_called_different():
    rejected = sum(timing.compare_once(0.0, seed).rejects_equality for seed in range(20))
    assert rejected <= 6


def test_the_usual_tests_know_a_difference_and_its_absence():
    rng = np.random.default_rng(0)
    a = rng.normal(1.0, 0.01, 30)
    for name, test in demonstration.TESTS.items():
        assert test(a, a * 1.2), name
        assert not test(a, a.copy()), name


def test_the_allowed_rejections_are_those_of_the_protocol():
    assert timing.allowed_rejections(200) == 15
    assert timing.allowed_rejections(400) == 27


def test_the_threads_are_given_back(monkeypatch):
    monkeypatch.setattr(selfcheck, "CHECKS", {"none": lambda effort: []})
    torch.set_num_threads(2)
    assert list(selfcheck.run_selfcheck(FEW)) == []
    assert torch.get_num_threads() == 2


@pytest.mark.nightly
def test_the_full_self_check_passes():
    assert [o for o in selfcheck.run_selfcheck(selfcheck.FULL) if not o.passed] == []
