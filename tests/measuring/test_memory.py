"""Peak memory: exact by the allocator's events, close by resident memory, never by polling.

Resident memory is measured in a worker, whose allocator is set for it.
"""

import pytest
import torch

from harness.measuring import allocator, memory
from harness.worker import Exit, ForkServer, Limits

MIB = 2**20


@pytest.mark.parametrize("mib", [1, 4, 16, 64, 256])
def test_the_allocator_method_is_exact(mib):
    assert memory.allocator_events(lambda: torch.ones(mib * MIB // 4)).peak_bytes == mib * MIB


def test_a_block_that_is_freed_before_the_next_does_not_add_up():
    def alloc_free_alloc():
        torch.ones(8 * MIB // 4)
        return torch.ones(4 * MIB // 4)

    assert memory.allocator_events(alloc_free_alloc).peak_bytes == 8 * MIB


def test_blocks_alive_together_add_up():
    def nested():
        outer = torch.ones(8 * MIB // 4)
        return outer, torch.ones(4 * MIB // 4)

    assert memory.allocator_events(nested).peak_bytes == 12 * MIB


def test_scratch_inside_a_kernel_is_seen():
    scores = torch.randn(512, 2048)
    peak = memory.allocator_events(lambda: torch.softmax(scores.half(), -1).sum()).peak_bytes
    assert peak >= 2 * scores.numel() * 2


def resident_peaks(payload, channel):
    assert allocator.set_for_resident_memory()
    torch.ones(64 * MIB)  # starts the threads
    for mib in payload:
        channel.send(memory.resident_peak(lambda mib=mib: torch.ones(mib * MIB // 4)))
    channel.send(memory.calibrate_resident_peak())


@pytest.mark.skipif(
    memory.resident_method_problem() is not None, reason="needs a writable /proc/self/clear_refs"
)
def test_resident_peaks_follow_the_blocks_up_and_down():
    sizes = (200, 100, 1, 4, 16, 64)
    messages = list(ForkServer().run("tests.measuring.test_memory:resident_peaks", sizes, Limits()))
    assert isinstance(messages[-1], Exit)
    *peaks, residual = messages[:-1]
    for mib, peak in zip(sizes, peaks, strict=True):
        assert abs(peak - mib * MIB) <= max(MIB // 2, mib * MIB // 100)
    assert abs(residual) <= MIB


def test_a_method_that_cannot_run_leaves_null_and_its_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "missing" / "clear_refs")
    peak = memory.measure_peak(lambda: torch.ones(MIB // 4), "cpu")
    assert peak.alloc_bytes == MIB
    assert peak.rss_bytes is None
    assert "not writable" in peak.method


def test_repeats_that_differ_are_reported():
    sizes = iter(range(1, 100))
    peak = memory.measure_peak(lambda: torch.ones(next(sizes) * MIB // 4), "cpu")
    assert not peak.repeats_agree


def test_what_a_call_saves_for_the_backward_pass_is_told_from_its_workspace():
    x = torch.ones(MIB // 4, requires_grad=True)

    def run():
        torch.ones(8 * MIB // 4)  # workspace
        return x.exp()  # saves its output

    events = memory.allocator_events(run)
    assert events.peak_bytes == 8 * MIB
    assert events.live_bytes == MIB
