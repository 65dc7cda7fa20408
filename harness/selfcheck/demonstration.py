"""Why rounds are paired: one function under two names, measured the usual way and ours.

The usual way runs all of A, then all of B, and tests the two lists: every slow second of the
machine becomes a difference. Both ways get the same number of calls here, one after the other, so
that they meet the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from harness.measuring.clock import CpuClock
from harness.selfcheck.outcome import Effort, Outcome
from harness.selfcheck.timing import REPEATS, allowed_rejections, compare_once, work
from harness.statistics.dependence import Array
from harness.statistics.quantiles import normal_two_sided, t_two_sided

_SAMPLES = 30
_THRESHOLD = 0.05


def welch(a: Array, b: Array) -> bool:
    """Welch's t test at 5 %."""
    va, vb = np.var(a, ddof=1) / len(a), np.var(b, ddof=1) / len(b)
    if va + vb == 0:
        return bool(np.mean(a) != np.mean(b))
    t = float((np.mean(a) - np.mean(b)) / math.sqrt(va + vb))
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return t_two_sided(abs(t), max(1, int(freedom))) <= 0.05


def mann_whitney(a: Array, b: Array) -> bool:
    """Mann and Whitney's rank test at 5 %, normal approximation."""
    n, m = len(a), len(b)
    wins = float(np.sum(a[:, None] > b) + 0.5 * np.sum(a[:, None] == b))
    z = (wins - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12)
    return normal_two_sided(abs(z)) <= 0.05


def minima(a: Array, b: Array) -> bool:
    """Minimum against minimum, different from 5 % on."""
    return bool(abs(np.min(a) / np.min(b) - 1) > _THRESHOLD)


TESTS: dict[str, Callable[[Array, Array], bool]] = {
    "A then B, Welch's t test": welch,
    "A then B, Mann-Whitney test": mann_whitney,
    "A then B, minima 5 % apart": minima,
}


def check_demonstration(effort: Effort) -> list[Outcome]:
    """False verdicts of the usual tests and of the paired rounds, on this machine."""
    num = max(40, effort.comparisons // 4)
    called = dict.fromkeys(TESTS, 0)
    paired = 0
    for seed in range(num):
        a, b = _all_of_one(), _all_of_one()
        for name, test in TESTS.items():
            called[name] += test(a, b)
        paired += compare_once(0.0, 5000 + seed).rejects_equality
    shown = [
        Outcome(name, f"{count} of {num} called different", "shown beside", True)
        for name, count in called.items()
    ]
    figure = f"{paired} of {num} called different"
    allowed = allowed_rejections(num)
    return [*shown, Outcome("paired rounds", figure, f"at most {allowed}", paired <= allowed)]


def _all_of_one() -> Array:
    """As a benchmark script does: warm up, then thirty samples of one function."""
    run, clock = work(REPEATS), CpuClock()
    for _ in range(5):
        run()
    return np.array([clock.sample(run, 3).time_s for _ in range(_SAMPLES)])
