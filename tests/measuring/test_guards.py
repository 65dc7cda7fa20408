"""Guards flag rounds on evidence; they never drop a value."""

import time

import pytest

from harness.attention import AttentionConfig, Case
from harness.measuring import guards
from harness.measuring.guards import RoundGuard, _Reading, make_canary

CASE = Case(config=AttentionConfig(hidden_size=8, num_heads=2, seq_len=4))


def guard_with(**lists):
    guard = RoundGuard()
    for name, values in lists.items():
        setattr(guard, name, values)
    return guard


def test_a_round_whose_canary_is_off_its_median_is_flagged():
    guard = guard_with(canary_times_s=[1.0, 1.01, 1.2, 1.0, 0.99], switches_per_cpu_s=[0.0] * 5)
    assert guard.flagged_rounds() == {"canary": (2,)}
    assert guard.flags() == ()


def test_many_flagged_rounds_make_the_case_noisy():
    guard = guard_with(switches_per_cpu_s=[500.0, 0.0, 500.0, 0.0, 0.0])
    assert guard.flagged_rounds() == {"switches": (0, 2)}
    assert guard.flags() == ("noise: 2 of 5 rounds flagged",)


def test_stolen_time_flags_the_round():
    guard = guard_with(steal_share=[0.0, 0.5], switches_per_cpu_s=[0.0, 0.0])
    assert guard.flagged_rounds() == {"steal": (1,)}


def test_the_canary_is_timed_once_a_round():
    guard = RoundGuard(canary=lambda: time.sleep(0.001))
    for _ in range(3):
        guard.begin_round()
        guard.end_round()
    assert len(guard.canary_times_s) == len(guard.switches_per_cpu_s) == 3
    assert all(t >= 0.001 for t in guard.canary_times_s)


def reading(wall_s, own_cpu_s, busy_s):
    return _Reading(wall_s, own_cpu_s, switches=0, busy_s=busy_s, steal_s=0.0)


def test_processor_time_of_others_is_foreign_load_and_our_own_is_not(monkeypatch):
    readings = iter([reading(0.0, 0.0, 100.0), reading(10.0, 15.0, 124.0)])
    monkeypatch.setattr(guards, "_read", lambda: next(readings))
    guard = RoundGuard()
    guard.begin_round()
    guard.end_round()
    assert guard.foreign_cores() == pytest.approx(0.9)
    assert guard.flags() == ("foreign_load: 0.90 cores used by other processes",)


def test_an_unreadable_machine_gives_no_foreign_load(monkeypatch):
    readings = iter([reading(0.0, 0.0, None), reading(1.0, 1.0, None)])
    monkeypatch.setattr(guards, "_read", lambda: next(readings))
    guard = RoundGuard()
    guard.begin_round()
    guard.end_round()
    assert guard.foreign_cores() is None
    assert guard.flags() == ()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_canary_works_in_the_dtype_of_the_case_and_takes_a_fraction_of_a_second(dtype):
    config = AttentionConfig(hidden_size=8, num_heads=2, seq_len=4, dtype=dtype)
    canary = make_canary(Case(config=config))
    started = time.perf_counter()
    canary()
    assert time.perf_counter() - started < 0.5


def test_cuda_has_no_cpu_canary():
    config = AttentionConfig(hidden_size=8, num_heads=2, seq_len=4)
    assert make_canary(Case(config=config, device="cuda")) is None


def cpu_reading(own_cpu_s, switches):
    return _Reading(own_cpu_s, own_cpu_s, switches=switches, busy_s=None, steal_s=None)


@pytest.mark.parametrize(
    ("cpu_s", "switches", "flagged"),
    [(1.0, 30, False), (1.0, 125, True), (0.01, 2, False), (0.01, 3, True)],
)
def test_switches_flag_a_round_where_others_take_whole_slices(
    monkeypatch, cpu_s, switches, flagged
):
    readings = iter([cpu_reading(0.0, 0), cpu_reading(cpu_s, switches)])
    monkeypatch.setattr(guards, "_read", lambda: next(readings))
    guard = RoundGuard()
    guard.begin_round()
    guard.end_round()
    assert bool(guard.flagged_rounds()) is flagged
