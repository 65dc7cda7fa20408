"""Speed of ``fused`` on a card beside the kernels that a chooser would take instead.

The table of ratios, calls interleaved in rounds of random order, medians over rounds::

    python -m tests.benchmarks.test_fused_cuda
    pytest tests/benchmarks/test_fused_cuda.py --benchmark-only -s

A ratio is the other's time divided by fused's in the same round: above 1, fused is faster. The goal
of a line is the least ratio to the fastest of the others.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
GOALS = {"forward": 1.0, "forward_backward": 0.9}  # by mode
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

    @property
    def goal(self) -> float:
        """Least ratio to the fastest of the others that is aimed at."""
        return GOALS[self.case.mode.value]

    @property
    def verdict(self) -> str:
        """Whether the goal is reached, beside the fastest of the others."""
        if not self.ratios:
            return f"goal {self.goal:.1f}: nothing to compare with"
        name, ratio = min(self.ratios.items(), key=lambda item: item[1])
        said = "reached" if ratio >= self.goal else "missed"
        return f"goal {self.goal:.1f}: {said}, {ratio:.2f} of {name}"

    def __str__(self) -> str:
        speed = flop_count(self.case) / self.time_s * 1e-12
        others = [f"{name} {ratio:5.2f}" for name, ratio in self.ratios.items()]
        others += [f"{name} - ({reason})" for name, reason in self.reasons.items()]
        figures = f"{self.time_s * 1e3:9.3f} ms {speed:7.1f} TFLOP/s"
        first = f"{self.case.id:<64} {figures}  {self.verdict:<36}  {'  '.join(others)}"
        return f"{first}\n    {self.kernel}"


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


def summary(lines: Sequence[Line]) -> str:
    """How often each mode's goal is reached, of the lines that have something to compare with."""
    said = []
    for mode, goal in GOALS.items():
        best = [min(x.ratios.values()) for x in lines if x.case.mode == mode and x.ratios]
        reached = sum(ratio >= goal for ratio in best)
        said.append(f"{mode}: {reached} of {len(best)} lines reach {goal:.1f} of the fastest")
    return "\n".join(said)


@pytest.mark.gpu
def test_fused_beside_the_others_on_a_card(benchmark, capsys) -> None:  # type: ignore[no-untyped-def]
    lines = benchmark.pedantic(lambda: list(table(cases())), rounds=1)
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}: other by fused")
        print(*lines, sep="\n")
        print(summary(lines))
    assert all(line.time_s > 0 for line in lines)


def test_the_table_is_made_on_the_cpu_too() -> None:
    case = Case.from_dict({"hidden_size": 64, "num_heads": 2, "seq_len": 16, "mask": "causal"})
    line = measure(case, rounds=3)
    assert line.ratios["sdpa_flash"] > 0
    assert set(line.reasons) == {"sdpa_cudnn", "xformers"}
    assert "TFLOP/s" in str(line)
    assert f"of {min(line.ratios, key=line.ratios.__getitem__)}" in line.verdict


@pytest.mark.parametrize(
    ("mode", "ratios", "verdict"),
    [
        ("forward", {"a": 1.3, "b": 1.04}, "goal 1.0: reached, 1.04 of b"),
        ("forward", {"a": 0.95}, "goal 1.0: missed, 0.95 of a"),
        ("forward_backward", {"a": 0.95, "b": 1.2}, "goal 0.9: reached, 0.95 of a"),
        ("forward", {}, "goal 1.0: nothing to compare with"),
    ],
)
def test_a_goal_is_held_against_the_fastest_of_the_others(
    mode: str, ratios: dict[str, float], verdict: str
) -> None:
    case = Case.from_dict({"hidden_size": 64, "num_heads": 2, "seq_len": 16, "mode": mode})
    line = Line(case, "fused", 1e-3, ratios, {})
    assert line.verdict == verdict
    assert verdict in str(line)


def test_the_goals_are_counted_by_mode() -> None:
    of_mode = [
        Line(case, "fused", 1e-3, {"a": ratio}, {})
        for ratio, mode in ((1.1, "forward"), (0.8, "forward"), (0.92, "forward_backward"))
        for case in [Case.from_dict({"hidden_size": 8, "num_heads": 1, "seq_len": 4, "mode": mode})]
    ]
    assert summary(of_mode).splitlines() == [
        "forward: 1 of 2 lines reach 1.0 of the fastest",
        "forward_backward: 1 of 1 lines reach 0.9 of the fastest",
    ]


def test_the_cases_are_the_long_ones_of_both_widths() -> None:
    found = {(c.config.head_dim, c.mode.value, c.config.dtype.value) for c in cases()}
    assert found == {(d, mode, "bfloat16") for d in (64, 128) for mode in GOALS}
    assert min(c.config.seq_len for c in cases()) == 2048


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA card")
    shown = []
    for each in table(cases()):
        shown.append(each)
        print(each, flush=True)
    print(summary(shown))
