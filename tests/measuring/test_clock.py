"""Clocks: what is counted, and what is not."""

import threading
import time

from harness.measuring.clock import CpuClock
from harness.measuring.device_clock import make_clock


class Background:
    """Starts 20 ms of work in a thread and returns at once; ``synchronize`` waits for it."""

    def __init__(self):
        self.thread = None

    def __call__(self):
        self.thread = threading.Thread(target=time.sleep, args=(0.02,))
        self.thread.start()

    def synchronize(self):
        self.thread.join()


# C49
def test_work_that_a_call_only_started_is_counted():
    background = Background()
    assert make_clock("cpu", background).sample(background, 1).time_s >= 0.02


def test_a_sample_of_several_calls_gives_the_time_of_one():
    sample = CpuClock().sample(lambda: time.sleep(0.004), 5)
    assert 0.004 <= sample.time_s < 0.02


def test_the_last_result_is_returned():
    results = iter(range(3))
    assert CpuClock().sample(lambda: next(results), 3).result == 2


# C51
def test_emptying_the_caches_is_not_counted():
    clock = make_clock("cpu", before=lambda: time.sleep(0.05))
    assert clock.sample(lambda: time.sleep(0.001), 1).time_s < 0.02
