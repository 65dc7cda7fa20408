"""False verdicts and power of the paired rounds, beside torch.utils.benchmark and pytest-benchmark.

    pytest tests/benchmarks/test_against_others.py --benchmark-only -s

The same pairs of functions of about a millisecond, a second of measuring for each. The others
have no verdict of their own: their samples get the test that people put on them, Welch's and Mann
and Whitney's. Both measure A, then B; that is what makes the difference.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.benchmark import Timer

from harness.selfcheck.demonstration import mann_whitney, welch
from harness.selfcheck.timing import (
    allowed_rejections,
    compare_once,
    repeats_of_a_millisecond,
    work,
)
from harness.settings import MeasureSettings

PAIRS = 30
BUDGET_S = 1.0  # per function
SLOWDOWN = 0.02
OURS = MeasureSettings(
    budget_s=2 * BUDGET_S, precision=0.007, margin=0.0, warmup_min_s=0.0, warmup_max_s=0.01
)

THEIR_SUITE = """
import pytest, torch
from harness.selfcheck.timing import work
torch.set_num_threads(1)
@pytest.mark.parametrize("pair", range({pairs}))
@pytest.mark.parametrize("name", ["a", "b"])
def test_one(benchmark, pair, name):
    benchmark(work({repeats}))
"""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def repeats():
    return repeats_of_a_millisecond()


def torch_times(repeats):
    timer = Timer("run()", globals={"run": work(repeats)}, num_threads=1)
    return np.array(
        timer.adaptive_autorange(max_run_time=BUDGET_S, min_run_time=BUDGET_S / 10).times
    )


def with_torch(repeats):
    return [(torch_times(repeats), torch_times(repeats)) for _ in range(PAIRS)]


def with_pytest_benchmark(folder, repeats):
    suite, report = folder / "test_theirs.py", folder / "theirs.json"
    suite.write_text(THEIR_SUITE.format(pairs=PAIRS, repeats=repeats))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)]
    options = [f"--benchmark-json={report}", "--benchmark-save-data", "--rootdir", str(folder)]
    limits = [f"--benchmark-max-time={BUDGET_S}", "--benchmark-min-rounds=5"]
    subprocess.run([*command, *options, *limits], check=True, capture_output=True, cwd=folder)
    data = json.loads(report.read_text())["benchmarks"]
    times = {(b["params"]["pair"], b["params"]["name"]): np.array(b["stats"]["data"]) for b in data}
    return [(times[pair, "a"], times[pair, "b"]) for pair in range(PAIRS)]


def share(pairs, test):
    return sum(test(a, b) for a, b in pairs) / len(pairs)


def test_false_verdicts_and_power(benchmark, repeats, tmp_path, capsys):
    def ours():
        return [compare_once(0.0, seed, OURS, repeats) for seed in range(PAIRS)]

    equal = benchmark.pedantic(ours, rounds=1)
    slower = [compare_once(SLOWDOWN, 100 + seed, OURS, repeats) for seed in range(PAIRS)]
    false, seen = (sum(c.rejects_equality for c in cs) for cs in (equal, slower))
    theirs = {"torch.utils.benchmark": with_torch(repeats)}
    theirs["pytest-benchmark"] = with_pytest_benchmark(tmp_path, repeats)
    with capsys.disabled():
        print(f"\n{PAIRS} pairs of one function under two names, called different:")
        print(f"  paired rounds           {false / PAIRS:4.0%}")
        for name, pairs in theirs.items():
            print(f"  {name:<23} {share(pairs, welch):4.0%} Welch, ", end="")
            print(f"{share(pairs, mann_whitney):4.0%} Mann-Whitney")
        print(f"2 % slowdown seen by paired rounds in {seen / PAIRS:.0%}")
    assert false <= allowed_rejections(PAIRS)
    assert seen >= 0.9 * PAIRS
