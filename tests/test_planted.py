"""The battery's proof: planted defects are caught, each by the check that is there for it."""

from __future__ import annotations

import pytest

from harness.attention import DType
from harness.conformance import CHECKS, DTYPES, Outcome, run_battery
from harness.conformance.evidence import HARD_TO_SEE, Evidence, compare_rules, find_evidence
from harness.conformance.planted import DEFECTS, SOUND

# Which check must see which defect by itself. Every check has one, every defect has one.
CAUGHT_BY = {
    "check_reasons": ["SpeaksInLists"],
    "check_sizes_that_all_differ": [
        "DropsLastKey",
        "ScaleOffByOnePercent",
        "ScaleOffByOneThousandth",
        "NoScale",
        "ScaleOfWholeWidth",
        "RoundsWeightsTwice",
        "CrudeExponential",
        "SumStartsAtEpsilon",
        "KeysForValues",
        "LengthsBeforeHeads",
        "FirstEntryForAll",
    ],
    "check_masks": [
        "TopLeftForBottomRight",
        "BottomRightForTopLeft",
        "SeesNextKey",
        "MissesOwnKey",
        "WindowOneTooWide",
        "IgnoresWindow",
        "IgnoresPadding",
        "PaddingOfFirstEntry",
        "MaskPolarity",
        "MasksByOr",
        "MasksByProduct",
        "MasksByLargeNumber",
        "BiasBeforeScale",
        "BiasOfFirstHead",
        "RoundsScores",
        "TruncatesOutput",
        "DropsRaggedTile",
    ],
    "check_lengths": [
        "DropsLastKeyOfRaggedTile",
        "DropsRaggedTile",
        "LeavesTailOfQueries",
        "LowAccumulator",
        "ForgetsToRescale",
    ],
    "check_grouped_heads": ["GroupsInterleaved"],
    "check_scale": ["IgnoresScale"],
    "check_head_dims": ["OnlyMultiplesOfEight"],
    "check_empty_sizes": ["NanForEmptyRows"],
    "check_rows_without_keys": ["NanForEmptyRows", "MasksByLargeNumber"],
    "check_garbage_below_masks": ["MasksBySmallNumber"],
    "check_additive_masks": ["NanForEmptyRows", "BiasBeforeScale"],
    "check_score_range": ["NoMaximum", "MaximumStartsTooHigh"],
    "check_strides": ["IgnoresStrides"],
    "check_keeps_nothing": ["ReusesItsBuffer", "RemembersResults", "ChangesItsInputs"],
    "check_same_twice": ["UnsteadySum"],
    "check_nan_in_nan_out": ["SwallowsNan"],
    "check_bad_tensors_are_refused": ["AcceptsAnything"],
    "check_distributions": ["ScaleOffByOnePercent", "LowAccumulator", "RoundsScores"],
    "check_log_sum_exp": [
        "LogSumExpToBaseTwo",
        "LogSumExpWithoutMaximum",
        "LogSumExpOfNoKeys",
    ],
    "check_keys_have_no_order": ["DropsLastKey", "ForgetsToRescale"],
    "check_values_are_averaged": ["KeysForValues", "LeavesTailOfQueries"],
    "check_split_invariance": ["DropsRaggedTile", "ForgetsToRescale"],
    "check_independence": ["FirstEntryForAll"],
    "check_causality": ["SeesNextKey", "TopLeftForBottomRight"],
    "check_shared_heads": ["GroupsInterleaved"],
    "check_gradients": [
        "NoGradientOfTheSum",
        "GradientWithoutScale",
        "GradientOfOneHeadOfAGroup",
    ],
    "check_gradients_by_differences": ["NoGradientOfTheSum", "GradientWithoutScale"],
    "check_modes_agree": ["ForgetsScaleInTraining"],
    "check_dropout": ["ClaimsDropout"],
    "check_layers": ["HeadsInterleavedInLayer", "SelfAttentionOnly"],
    "check_layer_gradients": ["HalfAGradientOfOutputWeights"],
}
PAIRS = [(check, name) for check, names in CAUGHT_BY.items() for name in names]
KINDS = {kind.__name__: kind for kind in DEFECTS}


def test_every_check_is_there_for_a_defect_and_every_defect_has_its_check():
    assert set(CAUGHT_BY) == {check.__name__ for check in CHECKS}
    assert {name for _, name in PAIRS} == set(KINDS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("check", "name"), PAIRS)
def test_the_defect_is_caught_by_its_check(check, name, dtype):
    if dtype not in KINDS[name].seen_in:
        return
    (result,) = run_battery(KINDS[name](), (dtype,), only=(check,))
    if check == "check_gradients_by_differences" and dtype is not DType.FLOAT32:
        assert result.outcome is Outcome.SKIPPED
    else:
        assert result.is_failure, name


@pytest.mark.parametrize("dtype", [*DTYPES, DType.FLOAT64])
@pytest.mark.parametrize("kind", SOUND)
def test_no_check_flags_a_sound_implementation(kind, dtype):
    results = run_battery(kind(), (dtype,))
    assert [result for result in results if result.is_failure] == []
    assert len(results) == len(CHECKS)


def test_every_defect_says_what_is_wrong_with_it():
    sayings = [kind.__doc__.partition("\n")[0] for kind in DEFECTS]
    assert len(set(sayings)) == len(DEFECTS)
    assert all((saying and not saying[0].isupper()) or saying[0] in "0T" for saying in sayings)


def test_evidence_tells_caught_from_missed_and_sound_from_flagged():
    sound, wrong = SOUND[0], KINDS["DropsLastKey"]
    first, second = find_evidence(
        (sound, wrong), (DType.FLOAT32,), ("check_sizes_that_all_differ",)
    )
    assert (first.caught_by, first.must_fail, first.is_as_it_should_be) == (None, False, True)
    assert (second.caught_by, second.is_as_it_should_be) == ("check_sizes_that_all_differ", True)
    assert second.defect == "drops the last key"
    missed = Evidence("Wrong", "is wrong", DType.FLOAT32, True, None, "")
    flagged = Evidence("Sound", "", DType.FLOAT32, False, "check_masks", "")
    unseen = Evidence("Wrong", "is wrong", DType.BFLOAT16, False, None, "")
    assert not missed.is_as_it_should_be
    assert not flagged.is_as_it_should_be
    assert unseen.is_as_it_should_be


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_whole_battery_is_right_about_everyone(dtype):
    assert [e for e in find_evidence(dtypes=(dtype,)) if not e.is_as_it_should_be] == []


def test_the_bound_sees_what_other_rules_let_pass():
    """The table of the protocol: on an outlier channel twice naive's error passes every defect."""
    found = {(r.defect, r.inputs): r for r in compare_rules()}
    defects = [kind.__doc__.partition("\n")[0] for kind in HARD_TO_SEE if kind not in SOUND]
    for inputs in ("gaussian", "outlier_channel"):
        assert found["", inputs].bound_share < 1
    for defect in defects:
        seen = found[defect, "outlier_channel"]
        assert seen.bound_share > 1
        assert seen.naive_ratio <= 2
    assert found["drops the last key", "gaussian"].bound_share > 10
    assert found["scale off by 1 %", "gaussian"].allclose
    scores = next(d for d in defects if d.startswith("scores rounded"))
    assert found[scores, "outlier_channel"].bound_share > 100
