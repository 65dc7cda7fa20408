"""Speed of ``fused`` on a card beside the kernels that a chooser would take instead.

The table of ratios, calls interleaved in rounds of random order, medians over rounds::

    python -m tests.benchmarks.test_fused_cuda
    pytest tests/benchmarks/test_fused_cuda.py --benchmark-only -s

A ratio is the other's time divided by fused's in the same round: above 1, fused is faster.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import pytest
import torch

from harness.attention import Case
from harness.cost import flop_count
from harness.inputs.sets import make_inputs
from harness.interface import Implementation
from harness.measuring.device_clock import make_clock
from harness.measuring.modes import ModeCall, make_call
from harness.plugins.registry import load_implementation
from harness.settings import ImplementationSpec

TARGETS = {
    "fused": "implementations.fused:Fused",
    "sdpa_flash": "implementations.sdpa:SdpaFlash",
    "sdpa_cudnn": "implementations.sdpa:SdpaCudnn",
    "xformers": "implementations.xformers:Xformers",
}
ROUNDS = 30
WARM_UPS = 5
TOKENS = 2**14  # batch_size times seq_len


def cases(device: str = "cuda") -> Iterator[Case]:
    """Heads of 64 and 128, long sequences, bfloat16, with and without gradients."""
    for head_dim, seq_len, mask, mode in product(
        (64, 128), (2048, 4096, 8192), ("none", "causal"), ("forward", "forward_backward")
    ):
        yield Case.from_dict(
            {
                "device": device,
                "dtype": "bfloat16",
                "batch_size": TOKENS // seq_len,
                "hidden_size": 2048,
                "num_heads": 2048 // head_dim,
                "seq_len": seq_len,
                "mask": mask,
                "mode": mode,
            }
        )


@dataclass(frozen=True)
class Line:
    """One case of the table.

    Args:
        kernel: Which one fused ran.
        ratios: Median of the other's time by fused's, by the other's name.
        reasons: Why others are missing.
    """

    case: Case
    kernel: str
    time_s: float
    ratios: Mapping[str, float]
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        speed = flop_count(self.case) / self.time_s * 1e-12
        others = [f"{name} {ratio:5.2f}" for name, ratio in self.ratios.items()]
        others += [f"{name} - ({reason})" for name, reason in self.reasons.items()]
        figures = f"{self.time_s * 1e3:9.3f} ms {speed:7.1f} TFLOP/s"
        return f"{self.case.id:<64} {figures}  {'  '.join(others)}\n    {self.kernel}"


def measure(case: Case, targets: Mapping[str, str] = TARGETS, rounds: int = ROUNDS) -> Line:
    """All implementations of a case, interleaved."""
    found = {
        name: load_implementation(ImplementationSpec(name, target))
        for name, target in targets.items()
    }
    refused = {name: found[name].unsupported_reasons(case) for name in found}
    able: dict[str, Implementation] = {n: found[n] for n in found if not refused[n]}
    inputs = make_inputs(case)
    with torch.set_grad_enabled(case.mode.is_training):
        calls = {name: make_call(each, case, inputs) for name, each in able.items()}
        times = _times(case, calls, rounds)
    ratios = {
        name: math.exp(statistics.median(math.log(t / own) for t, own in _pairs(times, name)))
        for name in able
        if name != "fused"
    }
    reasons = {name: why[0] for name, why in refused.items() if why}
    kernel = found["fused"].kernel(case, inputs)
    return Line(case, kernel, statistics.median(times["fused"]), ratios, reasons)


def _times(case: Case, calls: Mapping[str, ModeCall], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call by round, in random order within each."""
    clock, order, rng = make_clock(case.device), list(calls), random.Random(case.seed)
    for call in list(calls.values()) * WARM_UPS:
        call.run()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            times[name].append(clock.sample(calls[name].run, 1).time_s)
    return times


def _pairs(times: Mapping[str, list[float]], name: str) -> Iterable[tuple[float, float]]:
    return zip(times[name], times["fused"], strict=True)


def table(chosen: Iterable[Case]) -> Iterator[Line]:
    """The lines, one at a time; memory of one is given back before the next."""
    for case in chosen:
        yield measure(case)
        torch.cuda.empty_cache()


@pytest.mark.gpu
def test_fused_beside_the_others_on_a_card(benchmark, capsys) -> None:  # type: ignore[no-untyped-def]
    lines = benchmark.pedantic(lambda: list(table(cases())), rounds=1)
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}: other by fused")
        print(*lines, sep="\n")
    assert all(line.time_s > 0 for line in lines)


def test_the_table_is_made_on_the_cpu_too() -> None:
    case = Case.from_dict({"hidden_size": 64, "num_heads": 2, "seq_len": 16, "mask": "causal"})
    line = measure(case, rounds=3)
    assert line.ratios["sdpa_flash"] > 0
    assert set(line.reasons) == {"sdpa_cudnn", "xformers"}
    assert "TFLOP/s" in str(line)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA card")
    for each in table(cases()):
        print(each, flush=True)
