"""Verdicts say what the evidence bears, at the promised rates of error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.statistics.intervals import Effect, effect_of, interval
from harness.statistics.verdicts import (
    Evidence,
    Verdict,
    allowed_rejections,
    benjamini_hochberg,
    best_set,
    control_of,
    corrected,
    evidence_of,
    forecast_rounds,
    holm,
    judge,
    verdict_of,
    weaker,
)
from tests import noise

M = 0.03
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def exact_effect(centre: float, half_width: float) -> Effect:
    """An effect whose 95 % interval has the given centre and half-width."""
    below, above = np.linspace(-1, -0.999, 10), np.linspace(0.999, 1, 10)
    d = centre + np.concatenate([below, above]) * half_width
    return effect_of([np.random.default_rng(4).permutation(d)])


@pytest.mark.parametrize(
    ("ratio", "half_width", "expected"),
    [
        (1.20, 0.05, Verdict.SLOWER),
        (0.80, 0.05, Verdict.FASTER),
        (1.04, 0.03, Verdict.SLOWER_SLIGHTLY),
        (0.96, 0.03, Verdict.FASTER_SLIGHTLY),
        (1.00, 0.01, Verdict.EQUIVALENT),
        (1.01, 0.005, Verdict.EQUIVALENT),
        (1.00, 0.10, Verdict.INCONCLUSIVE),
        (1.04, 0.05, Verdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_is_read_off_interval_and_margin(
    ratio: float, half_width: float, expected: Verdict
) -> None:
    assert judge(exact_effect(math.log(ratio), half_width), M) is expected


@given(st.floats(-0.2, 0.2), st.floats(0.001, 0.2))
def test_verdicts_by_p_values_are_those_by_intervals(centre: float, half_width: float) -> None:
    effect = exact_effect(centre, half_width)
    shown, m = interval(effect), math.log1p(M)
    verdict = judge(effect, M)
    if shown.low > m or shown.high < -m:
        assert verdict in (Verdict.SLOWER, Verdict.FASTER)
    elif -m < shown.low and shown.high < m:
        assert verdict is Verdict.EQUIVALENT
    elif not shown.contains(0.0):
        assert verdict in (Verdict.SLOWER_SLIGHTLY, Verdict.FASTER_SLIGHTLY)
    else:
        assert verdict is Verdict.INCONCLUSIVE
    if verdict.is_slower or verdict.is_faster:
        assert verdict.is_slower == (effect.centre > 0)


def verdict_rate(true_ratio: float, verdict: Verdict, n: int = 45, repeats: int = 600) -> float:
    rng = np.random.default_rng(12)
    found = [
        judge(effect_of([noise.normal(rng, n) + math.log(true_ratio)]), M) for _ in range(repeats)
    ]
    return float(np.mean([v is verdict for v in found]))


def test_equivalence_is_claimed_where_it_holds_and_not_where_it_does_not() -> None:
    assert verdict_rate(1.0, Verdict.EQUIVALENT) >= 0.95
    assert verdict_rate(1.03, Verdict.EQUIVALENT) <= 0.05
    assert verdict_rate(1.05, Verdict.EQUIVALENT) <= 0.005


def test_slower_is_claimed_only_beyond_the_margin() -> None:
    assert verdict_rate(1.05, Verdict.SLOWER) >= 0.95
    assert verdict_rate(1.03, Verdict.SLOWER) <= 0.05
    assert verdict_rate(1 / 1.05, Verdict.FASTER) >= 0.95


def test_a_small_sure_difference_gets_a_star() -> None:
    rng = np.random.default_rng(13)
    found = [judge(effect_of([noise.normal(rng, 45) + 0.02]), 0.02) for _ in range(200)]
    assert float(np.mean([v is Verdict.SLOWER_SLIGHTLY for v in found])) >= 0.5
    assert not any(v.is_faster for v in found)


@given(P_VALUES)
def test_benjamini_hochberg_is_that_of_scipy(p_values: list[float]) -> None:
    ours = benjamini_hochberg(p_values)
    assert ours == pytest.approx(stats.false_discovery_control(p_values).tolist())


@given(P_VALUES, st.sampled_from([0.05, 0.2, 0.5]))
def test_holm_rejects_step_by_step(p_values: list[float], alpha: float) -> None:
    rejected = set()
    for step, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[i] * (len(p_values) - step) > alpha:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(holm(p_values)) if p <= alpha} == rejected


def test_holm_of_a_known_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_comparison_that_is_decided_leaves_the_family_of_the_others() -> None:
    evidences = [Evidence(0.01, 0.02, 1.0), Evidence(0.03, 1.0, 0.01)]
    expected = [Evidence(0.02, 0.02, 1.0), Evidence(0.03, 1.0, 0.02)]
    assert corrected(evidences, "holm") == expected
    assert corrected(evidences, "bh") == expected
    assert corrected([], "holm") == []


def test_evidence_that_stands_twice_is_the_weaker_of_the_two() -> None:
    assert weaker(Evidence(0.1, 0.2, 0.3), Evidence(0.3, 0.2, 0.1)) == Evidence(0.3, 0.2, 0.3)


def test_all_comparisons_of_a_case_are_right_together_in_95_percent() -> None:
    """True ratios at the margin's edge, where either decision is wrong, beside plain ones."""
    rng = np.random.default_rng(18)
    edge, far = math.log1p(M), math.log(2)
    wrong = 0
    for _ in range(500):
        truths = (edge, edge, -edge, far)
        effects = [effect_of([noise.normal(rng, 30) + true]) for true in truths]
        evidences = corrected([evidence_of(e, M) for e in effects])
        verdicts = [verdict_of(e.centre, v) for e, v in zip(effects, evidences, strict=True)]
        decided = (Verdict.FASTER, Verdict.SLOWER, Verdict.EQUIVALENT)
        wrong += any(v in decided for v in verdicts[:3])
    assert wrong / 500 <= 0.07


def test_a_thousand_cases_of_five_equals_give_false_discoveries_in_at_most_5_percent() -> None:
    rng = np.random.default_rng(14)
    runs_with_any = 0
    runs = 40
    for _ in range(runs):
        effects = [effect_of([noise.normal(rng, 20)]) for _ in range(25 * 5)]
        by_case = [
            corrected([evidence_of(e, M) for e in effects[i : i + 5]]) for i in range(0, 125, 5)
        ]
        sweep = corrected([evidence_of(e, M) for e in effects], "bh")
        within_cases = [evidence for case in by_case for evidence in case]
        final = [weaker(a, b) for a, b in zip(within_cases, sweep, strict=True)]
        verdicts = [verdict_of(e.centre, f) for e, f in zip(effects, final, strict=True)]
        runs_with_any += any(v.is_faster or v.is_slower for v in verdicts)
    assert runs_with_any / runs <= 0.15  # 5 % and the binomial slack of 40 runs


def test_the_best_set_holds_all_that_are_not_slower() -> None:
    verdicts = [
        Verdict.EQUIVALENT,
        Verdict.SLOWER,
        Verdict.INCONCLUSIVE,
        Verdict.SLOWER_SLIGHTLY,
        Verdict.FASTER,
    ]
    assert best_set(verdicts) == [0, 2, 4]


def test_the_forecast_scales_with_the_square_of_the_missing_width() -> None:
    effect = exact_effect(0.0, 0.06)
    assert effect.num_rounds == 20
    needed = forecast_rounds(effect, M)
    assert needed == pytest.approx(20 * (0.06 / math.log1p(M)) ** 2, rel=0.05)


def test_rounds_as_forecast_do_bring_a_verdict() -> None:
    rng = np.random.default_rng(15)

    def draw(n: int) -> Effect:
        return effect_of([10 * noise.normal(rng, n) + 0.06])

    unsure = [effect for effect in (draw(20) for _ in range(100))
              if judge(effect, 0.02) is Verdict.INCONCLUSIVE]  # fmt: skip
    needed = int(np.median([n for e in unsure if (n := forecast_rounds(e, 0.02))]))
    sure = [judge(draw(2 * needed), 0.02) is not Verdict.INCONCLUSIVE for _ in range(50)]
    assert float(np.mean(sure)) >= 0.7


def test_what_can_never_be_told_has_no_forecast() -> None:
    assert forecast_rounds(effect_of([np.zeros(4)]), M) is None
    assert forecast_rounds(exact_effect(0.0, 0.01), 0.0) is None


def test_rejections_that_chance_explains_are_those_of_the_protocol() -> None:
    assert allowed_rejections(200) == 15
    assert allowed_rejections(400) == 27
    assert allowed_rejections(0) == 0
    for n in (1, 20, 120, 999):
        assert allowed_rejections(n) == int(stats.binom.ppf(0.95, n, 0.05))


def test_an_honest_run_passes_its_own_control() -> None:
    rng = np.random.default_rng(16)
    control = control_of([noise.normal(rng, 30) for _ in range(200)])
    assert control.trusted
    assert control.num_comparisons == 200
    assert 0.002 < control.noise_floor < 0.006
    assert control.margin(0.03) == 0.03
    assert control.margin(0.001) == 2 * control.noise_floor


def test_a_run_whose_shadow_differs_from_the_baseline_is_untrusted() -> None:
    rng = np.random.default_rng(17)
    control = control_of([noise.normal(rng, 30) + 0.02 for _ in range(50)])
    assert control.num_rejected > 40
    assert not control.trusted
    assert control.margin(0.001) == 2 * control.largest
    assert control.largest > control.noise_floor


def test_the_noise_floor_is_the_95th_percentile_of_the_shadows_effects() -> None:
    shadows = [np.full(8, sign * math.log1p(i / 1000)) for i, sign in zip(range(101), [1, -1] * 51)]  # noqa: B905
    assert control_of(shadows).noise_floor == pytest.approx(0.095)


def test_a_run_without_shadows_has_no_noise_floor_and_nothing_rejected() -> None:
    control = control_of([np.zeros(0)])
    assert (control.num_comparisons, control.num_rejected, control.noise_floor) == (0, 0, 0.0)
