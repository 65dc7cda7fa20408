"""The engine of paired rounds, on a fake clock: no time is measured here."""

import itertools
from collections import Counter

import numpy as np
import pytest

from harness.measuring import guards, rounds
from harness.measuring.clock import Sample
from harness.measuring.guards import RoundGuard
from harness.measuring.rounds import (
    Contestant,
    burst_length,
    calls_per_sample,
    run_rounds,
    warm_up,
)
from harness.settings import MeasureSettings

QUICK = MeasureSettings(budget_s=60.0, warmup_min_s=0.0, warmup_max_s=5.0)


class FakeClock:
    """Gives the times it is told to; remembers how it was called."""

    def __init__(self, times_s):
        self.times_s = iter(times_s)
        self.calls = []

    def sample(self, run, calls):
        result = run()
        self.calls.append(calls)
        return Sample(next(self.times_s), result)


def steady(time_s, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    while True:
        yield time_s * float(np.exp(noise * rng.standard_normal()))


def contestant(name, times_s, num_sets=4):
    runs = tuple((lambda i=i: (name, i)) for i in range(num_sets))
    return Contestant(name, runs, FakeClock(times_s))


def race(entries, settings=QUICK, seed=0, **kwargs):
    contestants = [contestant(name, times) for name, times in entries.items()]
    result = run_rounds(
        contestants, "base", "shadow", settings, np.random.default_rng(seed), RoundGuard(), **kwargs
    )
    return contestants, result


def test_every_contestant_takes_part_in_every_round():
    _, result = race({"base": steady(1e-3), "b": steady(2e-3), "shadow": steady(1e-3)})
    counts = {name: len(t.times_s) for name, t in result.timings.items()}
    assert len(set(counts.values())) == 1
    orders = list(zip(*(t.orders for t in result.timings.values()), strict=True))
    assert all(sorted(order) == [0, 1, 2] for order in orders)


def test_the_order_of_rounds_is_random_and_repeats_with_the_seed():
    def entries():
        return {
            "base": steady(1e-3, 0.5),
            "b": steady(1e-3, 0.5, 1),
            "shadow": steady(1e-3, 0.5, 2),
        }

    orders = [race(entries(), seed=seed)[1].timings["base"].orders for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert set(orders[0]) == {0, 1, 2}


def test_rounds_end_at_the_first_look_that_is_precise_enough():
    _, result = race({"base": steady(1e-3), "b": steady(1.01e-3), "shadow": steady(1e-3)})
    assert result.stop_reason == "precision"
    assert len(result.timings["base"].times_s) == rounds.LOOKS[0]


def test_rounds_end_with_a_verdict_when_the_strict_interval_is_beyond_the_margin():
    entries = {"base": steady(1e-3, 0.15), "b": steady(3e-3, 0.15, 1), "shadow": steady(1e-3)}
    _, result = race(entries, MeasureSettings(budget_s=60.0, precision=1e-6, warmup_max_s=0.0))
    assert result.stop_reason == "verdict"


def test_undecided_rounds_go_on_to_the_last_look():
    settings = MeasureSettings(budget_s=60.0, precision=1e-9, margin=1e-9, warmup_max_s=0.0)
    entries = {"base": steady(1e-3, 0.3), "b": steady(1e-3, 0.3, 1), "shadow": steady(1e-3, 0.3, 2)}
    _, result = race(entries, settings)
    assert result.stop_reason == "rounds"
    assert len(result.timings["b"].times_s) == rounds.LOOKS[-1]


def test_a_precision_of_zero_leaves_the_end_to_the_number_of_rounds():
    settings = MeasureSettings(budget_s=60.0, precision=0.0, margin=10.0, max_rounds=25)
    _, result = race({"base": steady(1e-3), "b": steady(1e-3), "shadow": steady(1e-3)}, settings)
    assert result.stop_reason == "rounds"
    assert len(result.timings["b"].times_s) == 25


def test_a_spent_budget_still_gives_the_fewest_rounds_that_hold_an_interval(monkeypatch):
    now = itertools.count(step=0.2)
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: float(next(now)))
    entries = {"base": steady(1e-3, 0.3), "b": steady(1e-3, 0.3, 1), "shadow": steady(1e-3)}
    settings = MeasureSettings(budget_s=5.0, precision=1e-9, warmup_max_s=0.0)
    _, result = race(entries, settings)
    assert result.stop_reason == "budget"
    assert len(result.timings["b"].times_s) >= rounds.MIN_ROUNDS


def test_rounds_are_cut_short_when_three_budgets_are_spent(monkeypatch):
    now = itertools.count(step=100.0)
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: float(next(now)))
    entries = {"base": steady(10.0), "b": steady(10.0), "shadow": steady(10.0)}
    _, result = race(entries, MeasureSettings(budget_s=5.0, precision=1e-9))
    assert result.stop_reason == "budget"
    assert len(result.timings["b"].times_s) == 1


def test_one_contestant_alone_is_judged_by_its_shadow():
    _, result = race({"base": steady(1e-3), "shadow": steady(1e-3)})
    assert result.stop_reason == "precision"


def test_short_calls_are_timed_several_at_a_time_the_same_for_all():
    contestants, result = race({"base": steady(2e-5), "b": steady(1e-3), "shadow": steady(2e-5)})
    assert result.calls_per_sample == 10
    for c in contestants:
        assert set(c.clock.calls[-50:]) == {10}


def test_every_input_set_takes_its_turn_and_the_last_result_on_the_first_is_kept():
    seen = []
    runs = tuple((lambda i=i: seen.append(i) or ("b", i)) for i in range(4))
    b = Contestant("b", runs, FakeClock(steady(1e-3)))
    others = [contestant("base", steady(1e-3)), contestant("shadow", steady(1e-3))]
    result = run_rounds(
        [b, *others], "base", "shadow", QUICK, np.random.default_rng(0), RoundGuard()
    )
    assert set(seen) == {0, 1, 2, 3}
    assert result.timings["b"].last_on_first_set == ("b", 0)


def test_each_burst_follows_a_priming_call_that_is_not_kept():
    c, result = race({"base": steady(1e-3), "shadow": steady(1e-3)})
    kept = sum(map(len, result.timings["base"].times_s))
    warm = 3
    primed = len(c[0].clock.calls) - kept - warm
    assert primed >= len(result.timings["base"].times_s)


def test_enter_names_who_is_running_before_every_sample():
    names = []
    race({"base": steady(1e-3), "b": steady(1e-3), "shadow": steady(1e-3)}, enter=names.append)
    counts = Counter(names)
    assert counts["base"] == counts["b"] == counts["shadow"] > 20
    assert names[-1] == ""


def test_the_warm_up_goes_on_until_two_halves_agree():
    ramp = [10e-3, 9e-3, 8e-3, 6e-3, 4e-3, 2e-3]
    timing = warm_up(contestant("x", [*ramp, *itertools.repeat(1e-3, 500)]), QUICK)
    assert timing.is_steady
    assert timing.call_s == pytest.approx(1e-3)


def test_a_warm_up_that_never_settles_is_cut_and_said():
    growing = (1e-3 * 1.2**i for i in itertools.count())
    timing = warm_up(contestant("x", growing), MeasureSettings(warmup_min_s=0.0, warmup_max_s=0.5))
    assert not timing.is_steady


# C50
def test_first_calls_that_are_slow_do_not_reach_the_samples():
    slow_first = itertools.chain([1e-2] * 3, steady(1e-3))
    _, result = race({"base": steady(1e-3), "b": slow_first, "shadow": steady(1e-3)})
    minima = [min(burst) for burst in result.timings["b"].times_s]
    assert np.median(minima) == pytest.approx(1e-3, rel=0.05)


@pytest.mark.parametrize(("quickest_s", "calls"), [(1e-3, 1), (2e-4, 1), (1.9e-4, 2), (1e-6, 200)])
def test_a_sample_lasts_at_least_200_us(quickest_s, calls):
    assert calls_per_sample([1.0, quickest_s], 200e-6) == calls


@pytest.mark.parametrize(("sample_s", "length"), [(1e-3, 6), (12e-3, 4), (20e-3, 3), (60e-3, 1)])
def test_a_burst_has_three_to_six_samples_and_one_of_a_long_call(sample_s, length):
    assert burst_length(sample_s, MeasureSettings()) == length


def test_a_throttled_round_is_made_again_and_said(monkeypatch):
    monkeypatch.setattr(guards.time, "sleep", lambda s: None)
    answers = iter([True, False, True])
    guard = RoundGuard(was_throttled=lambda: next(answers, False))
    contestants = [contestant(name, steady(1e-3)) for name in ("base", "b", "shadow")]
    result = run_rounds(contestants, "base", "shadow", QUICK, np.random.default_rng(0), guard)
    assert {len(t.times_s) for t in result.timings.values()} == {rounds.LOOKS[0]}
    assert len(guard.switches_per_cpu_s) == rounds.LOOKS[0]
    assert any(flag.startswith("throttled: 2 rounds") for flag in guard.flags())


def test_throttling_without_end_does_not_keep_the_rounds_from_ending(monkeypatch):
    monkeypatch.setattr(guards.time, "sleep", lambda s: None)
    guard = RoundGuard(was_throttled=lambda: True)
    contestants = [contestant(name, steady(1e-3)) for name in ("base", "b", "shadow")]
    result = run_rounds(contestants, "base", "shadow", QUICK, np.random.default_rng(0), guard)
    assert result.stop_reason == "precision"
    assert guard.num_dropped == 20
