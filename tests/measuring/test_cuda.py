"""The logic of timing and watching a CUDA device, on a fake one; marked tests run on a card."""

import pytest
import torch

from harness.measuring.clock import CpuClock
from harness.measuring.cuda import ClockState, CudaClock, ThrottleWatch, TorchDriver, host_call_s
from harness.measuring.device_clock import make_clock


class FakeEvent:
    def __init__(self, driver):
        self.driver = driver

    def record(self):
        self.at_ms = self.driver.now_ms

    def synchronize(self):
        self.driver.log.append("wait")

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


class FakeDriver:
    """A device whose stream advances by what is put on it."""

    def __init__(self, captures=True, states=()):
        self.now_ms, self.log, self.captures = 0.0, [], captures
        self.states = iter(states)

    def event(self):
        return FakeEvent(self)

    def work(self, ms=1.0):
        self.log.append("work")
        self.now_ms += ms
        return self.now_ms

    def sleep(self, cycles):
        self.log.append("sleep")
        self.now_ms += 100.0

    def synchronize(self):
        self.log.append("synchronize")

    def capture(self, run, calls):
        self.log.append("capture")
        if not self.captures:
            return None

        def replay():
            self.log.append("replay")
            self.now_ms += 0.5 * calls

        return replay, "captured"

    def clock_state(self):
        return next(self.states, None)


def test_only_what_runs_between_the_events_counts():
    driver = FakeDriver()
    clock = CudaClock(driver, before=lambda: driver.work(50.0))
    assert clock.sample(driver.work, 1).time_s == pytest.approx(1e-3)
    assert driver.log == ["work", "sleep", "work", "wait"]


def test_several_calls_are_captured_once_and_replayed():
    driver = FakeDriver()
    clock = CudaClock(driver)
    first, second = clock.sample(driver.work, 4), clock.sample(driver.work, 4)
    assert first.time_s == second.time_s == pytest.approx(0.5e-3)
    assert first.result == "captured"
    assert driver.log.count("capture") == 1
    assert driver.log.count("replay") == 2


def test_calls_that_no_graph_can_hold_are_made_one_by_one():
    driver = FakeDriver(captures=False)
    assert CudaClock(driver).sample(driver.work, 4).time_s == pytest.approx(1e-3)
    assert driver.log.count("work") == 4


def test_the_host_figure_includes_waiting_for_the_device():
    driver = FakeDriver()
    assert host_call_s(driver.work, driver) > 0
    assert driver.log[:3] == ["synchronize", "work", "synchronize"]


POWER_CAP = 0x04
IDLE = 0x01


def test_a_round_on_lowered_clocks_is_throttled_and_does_not_move_the_median():
    states = [ClockState(1800, IDLE), ClockState(1800, POWER_CAP), ClockState(1500, 0)]
    watch = ThrottleWatch(FakeDriver(states=[*states, ClockState(1790, 0)]))
    assert [watch.round_was_throttled() for _ in range(4)] == [False, True, True, False]
    assert watch.num_throttled == 2
    assert watch.clocks_mhz == [1800, 1790]


def test_without_nvml_no_round_is_throttled():
    assert not ThrottleWatch(FakeDriver()).round_was_throttled()


def test_each_device_has_its_clock():
    assert isinstance(make_clock("cuda"), CudaClock)
    assert isinstance(make_clock("cpu"), CpuClock)


@pytest.mark.gpu
def test_a_product_on_a_card_takes_longer_for_twice_the_size():
    clock = CudaClock(TorchDriver())
    small, large = (torch.randn(n, n, device="cuda") for n in (2048, 4096))
    for matrix in (small, large):
        torch.mm(matrix, matrix)
    time_small = min(clock.sample(lambda: small @ small, 1).time_s for _ in range(5))
    time_large = min(clock.sample(lambda: large @ large, 1).time_s for _ in range(5))
    assert 4 < time_large / time_small < 16


@pytest.mark.gpu
def test_short_calls_on_a_card_are_replayed_from_a_graph():
    x = torch.ones(16, device="cuda")
    sample = CudaClock(TorchDriver()).sample(lambda: x + 1, 100)
    assert sample.time_s < 20e-6
    assert torch.equal(sample.result, x + 1)
