"""The checks of the statistics are sharp: a formula that is slightly wrong fails one of them.

Each mutant is the module's own source with one change; the checks below must fail on it. On the
unchanged source they must hold.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

import harness.statistics.intervals
import harness.statistics.quantiles
import harness.statistics.verdicts

MUTANTS = {
    # name: module, source, mutated source
    "k one too large": ("quantiles", "if tail > limit:", "if tail > limit + term:"),
    "k one too small": ("quantiles", "k, tail, term = 0, 0, 1", "k, tail, term = 0, 1, 1"),
    "alpha for half of alpha": ("quantiles", "Fraction(alpha) / 2", "Fraction(alpha)"),
    "upper end one too low": ("intervals", "ordered[len(d) - k])", "ordered[len(d) - k - 1])"),
    "ratio upside down": (
        "intervals",
        "math.log(min(calls[:n])) - math.log(min(baseline_calls[:n]))",
        "math.log(min(baseline_calls[:n])) - math.log(min(calls[:n]))",
    ),
    "bursts of unequal length": ("intervals", "min(baseline_calls[:n])", "min(baseline_calls)"),
    "one-sided sign test": ("intervals", "min(1.0, 2 * binomial_tail", "min(1.0, binomial_tail"),
    "spread not divided by the processes": (
        "intervals",
        "return sd * loss / math.sqrt(num_processes)",
        "return sd * loss",
    ),
    "normal for Student's t": (
        "intervals",
        "between = t_quantile(1 - alpha / 2, len(effect.medians) - 1)",
        "between = normal_quantile(1 - alpha / 2)",
    ),
    "biased standard deviation": ("intervals", "np.std(medians, ddof=1)", "np.std(medians)"),
    "smaller of inner and between": (
        "intervals",
        "half_width = max(inner, between)",
        "half_width = min(inner, between)",
    ),
    "dilated by the variance, not its root": (
        "intervals",
        "centre + math.sqrt(inflation) * (d - centre)",
        "centre + inflation * (d - centre)",
    ),
    "dilated about nothing": (
        "intervals",
        "centre + math.sqrt(inflation) * (d - centre)",
        "math.sqrt(inflation) * d",
    ),
    "Holm without its factor": (
        "verdicts",
        "(len(p_values) - rank) * p_values[i]",
        "p_values[i]",
    ),
    "Holm as Bonferroni": ("verdicts", "(len(p_values) - rank)", "len(p_values)"),
    "BH in the wrong order": ("verdicts", "p_values[i] * n / (n - rank)", "p_values[i] * n"),
    "margin on one side only": ("verdicts", "within=max(at_low, at_high)", "within=at_low"),
    "faster for slower": ("verdicts", "faster = centre < 0", "faster = centre > 0"),
    "forecast without the square": (
        "verdicts",
        "(half_width / distance) ** 2",
        "half_width / distance",
    ),
    "noise floor not doubled": ("verdicts", "2 * (self.noise_floor", "1 * (self.noise_floor"),
}


@contextmanager
def mutated(module: str, source: str, replacement: str) -> Iterator[dict[str, ModuleType]]:
    """Fresh copies of the three modules, one of them changed."""
    names = [
        "harness.statistics.quantiles",
        "harness.statistics.intervals",
        "harness.statistics.verdicts",
    ]
    originals = {name: sys.modules[name] for name in names}
    copies: dict[str, ModuleType] = {}
    try:
        for name in names:
            path = Path(str(originals[name].__file__))
            text = path.read_text()
            if name == f"harness.statistics.{module}":
                assert text.count(source) == 1, f"{source!r} is not once in {path.name}"
                text = text.replace(source, replacement)
            copy = ModuleType(name)
            copy.__file__ = str(path)
            sys.modules[name] = copy
            exec(compile(text, str(path), "exec"), copy.__dict__)
            copies[name.rpartition(".")[2]] = copy
        yield copies
    finally:
        sys.modules.update(originals)


def shuffled(low: float, high: float) -> Any:
    """Evenly spread rounds in an order that shows no dependence."""
    return np.random.default_rng(3).permutation(np.linspace(low, high, 30))


def checks(quantiles: Any, intervals: Any, verdicts: Any) -> None:
    """Small exact facts, each about one formula."""
    for n in (6, 20, 30, 45):
        k = quantiles.order_statistic_rank(n, 0.05)
        assert stats.binom.cdf(k - 1, n, 0.5) <= 0.025 < stats.binom.cdf(k, n, 0.5)
    d = np.arange(1.0, 21.0)
    shown = intervals.order_statistic_interval(d, 0.05)
    assert (shown.low, shown.high) == (6.0, 15.0)
    assert intervals.sign_test(d, 5.5) == pytest.approx(stats.binomtest(5, 20).pvalue)
    assert intervals.paired_differences([(4.0, 4.0)], [(2.0, 2.0, 1.0)])[0] == math.log(2)
    medians = (0.0, 0.02, 0.04)
    effect = intervals.effect_of([np.full(30, m) for m in medians])
    half = stats.t.ppf(0.975, 2) * 0.02 / math.sqrt(3) * math.sqrt(math.pi / 2)
    assert intervals.interval(effect, 0.05).half_width == pytest.approx(half)
    same = intervals.effect_of([d / 1000] * 3)
    assert intervals.interval(same, 0.05).half_width > 0
    row = intervals.effect_of([np.linspace(1.0, 2.0, 6)])
    reach = math.sqrt(row.inflation) / 2
    shown = intervals.interval(row)
    assert (shown.low, shown.high) == pytest.approx((1.5 - reach, 1.5 + reach))
    assert intervals.p_value(row, 1.5 + 1.01 * reach) <= 2 / 2**6
    assert verdicts.holm([0.01, 0.04]) == pytest.approx([0.02, 0.04])
    assert verdicts.benjamini_hochberg([0.01, 0.03]) == pytest.approx([0.02, 0.03])
    near = intervals.effect_of([shuffled(0.02, 0.04)])
    assert verdicts.evidence_of(near, 0.032).within > 0.05
    below = intervals.effect_of([shuffled(-0.04, -0.02)])
    assert verdicts.evidence_of(below, 0.032).within > 0.05
    assert verdicts.judge(below, 0.001) == "faster"
    unsure = intervals.effect_of([shuffled(-0.2, 0.2)])
    ratio = intervals.interval(unsure).half_width / math.log1p(0.03)
    assert verdicts.forecast_rounds(unsure, 0.03) == math.ceil(30 * ratio**2)
    assert verdicts.control_of([np.full(8, 0.01)]).margin(0.0) == pytest.approx(
        2 * math.expm1(0.01)
    )


def test_the_checks_hold_on_the_real_formulas() -> None:
    checks(harness.statistics.quantiles, harness.statistics.intervals, harness.statistics.verdicts)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_formula_that_is_slightly_wrong_is_found(name: str) -> None:
    with mutated(*MUTANTS[name]) as modules, pytest.raises(AssertionError):
        checks(**modules)
