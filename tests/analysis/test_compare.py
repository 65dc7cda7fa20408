"""Comparisons find what is there, claim nothing that is not, and rank only what is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from harness.analysis.compare import COMPARISON_TYPES, compare
from harness.analysis.pairs import control_of_run
from harness.analysis.winners import WINNER_TYPES, winners
from harness.columns import to_frame
from harness.errors import InvalidValueError
from harness.rows import Row, Status
from tests.synthetic import Truth, draw_rows, make_case, make_row

CASES = [make_case(n) for n in (128, 256, 512)]


def truth_of(passes: int = 3, noise: float = 0.02, **factors: float) -> Truth:
    seconds = {name: {case.id: factor * 1e-3 for case in CASES} for name, factor in factors.items()}
    return Truth(seconds, noise=noise, passes=passes)


def frame_of(truth: Truth, seed: int = 0) -> pd.DataFrame:
    return to_frame(draw_rows(CASES, truth, seed))


def test_ratios_are_those_that_were_drawn_and_verdicts_point_the_right_way() -> None:
    found = compare(frame_of(truth_of(base=1.0, fast=0.5, slow=1.3)))
    by_name = found.groupby("implementation")
    assert set(found["against"]) == {"base"}
    assert by_name["verdict"].unique().map(list).to_dict() == {
        "fast": ["faster"],
        "slow": ["slower"],
    }
    assert by_name["ratio"].median().to_dict() == pytest.approx(
        {"fast": 0.5, "slow": 1.3}, rel=0.01
    )
    assert ((found["ratio_low"] < found["ratio"]) & (found["ratio"] < found["ratio_high"])).all()


def test_equals_are_called_equivalent_and_never_slower() -> None:
    found = compare(frame_of(truth_of(base=1.0, same=1.0)))
    assert set(found["verdict"]) <= {"equivalent", "inconclusive"}
    assert (found["verdict"] == "equivalent").sum() >= 2


def test_what_cannot_be_told_yet_comes_with_a_forecast() -> None:
    few = replace(truth_of(passes=1, noise=0.06, base=1.0, same=1.0), num_rounds=8)
    noisy = compare(frame_of(few))
    noisy = noisy[noisy["verdict"] == "inconclusive"]
    assert len(noisy) >= 2
    assert (noisy["forecast_rounds"] > noisy["num_rounds"]).all()
    assert noisy["why"].str.match(r"about \d+ rounds would tell").all()


def test_only_implementations_that_are_right_in_every_pass_are_compared() -> None:
    rows = draw_rows(CASES, truth_of(base=1.0, fast=0.5, wrong=0.1))
    rows = [
        replace(row, status=Status.INCORRECT)
        if row.implementation == "wrong" and row.pass_index == 1
        else row
        for row in rows
    ]
    frame = to_frame(rows)
    assert set(compare(frame)["implementation"]) == {"fast"}
    assert set(winners(frame)["fastest"]) == {"fast"}


def test_any_implementation_can_be_the_reference() -> None:
    frame = frame_of(truth_of(base=1.0, fast=0.5, slow=2.0))
    by_name = compare(frame, against="slow").groupby("implementation")["ratio"].median()
    assert by_name.to_dict() == pytest.approx({"base": 0.5, "fast": 0.25}, rel=0.01)
    assert set(compare(frame, against="best")["against"]) == {"fast"}
    with pytest.raises(InvalidValueError, match=r"against: .*'nobody'.*base, fast, slow"):
        compare(frame, against="nobody")


def test_rows_of_two_runs_are_not_mixed() -> None:
    frame = to_frame([make_row(run_id="one"), make_row(run_id="two")])
    with pytest.raises(InvalidValueError, match="the rows of one run"):
        compare(frame)


def test_processes_that_disagree_are_shown_one_by_one() -> None:
    rows = draw_rows(CASES[:1], truth_of(passes=6, base=1.0, odd=1.0))
    slowed = [_slowed(row, 1.8) if row.implementation == "odd" and row.pass_index in (1, 4) else row
              for row in rows]  # fmt: skip
    line = compare(to_frame(slowed)).iloc[0]
    assert line["multimodal"]
    assert sorted(line["process_ratios"])[-2:] == pytest.approx([1.8, 1.8], rel=0.02)
    assert line["num_processes"] == 6


def _slowed(row: Row, factor: float) -> Row:
    times = tuple(tuple(factor * t for t in calls) for calls in row.samples.times_s)
    return replace(row, samples=replace(row.samples, times_s=times))


def test_a_noisy_case_calls_only_large_differences_and_says_why() -> None:
    rows = [
        replace(row, flags=("noise: 12 of 30 rounds flagged",)) if row.case == CASES[0] else row
        for row in draw_rows(CASES, truth_of(base=1.0, fast=0.5, near=0.93, same=1.0))
    ]
    found = compare(to_frame(rows)).set_index(["case_key", "implementation"])
    noisy, quiet = found.loc[CASES[0].key], found.loc[CASES[1].key]
    assert noisy["verdict"].to_dict() == {
        "fast": "faster", "near": "inconclusive", "same": "inconclusive"}  # fmt: skip
    assert noisy["why"].str.startswith("noise").to_dict() == {
        "fast": False, "near": True, "same": True}  # fmt: skip
    assert quiet["verdict"].to_dict() == {
        "fast": "faster", "near": "faster", "same": "equivalent"}  # fmt: skip


def test_what_beats_the_ceiling_of_the_machine_is_not_trusted() -> None:
    rows = [
        replace(row, flags=("above_ceiling: 1.7 of the rate",)) if row.implementation == "cheat"
        else row
        for row in draw_rows(CASES, truth_of(base=1.0, cheat=0.01))
    ]  # fmt: skip
    assert set(compare(to_frame(rows))["verdict"]) == {"untrusted"}
    loaded = [
        replace(row, flags=(*row.flags, "foreign_load: 1.2 cores")) if row.flags else row
        for row in rows
    ]
    assert set(compare(to_frame(loaded))["verdict"]) == {"faster"}


def test_the_noise_floor_is_that_of_the_quiet_cases() -> None:
    rows = draw_rows(CASES, truth_of(base=1.0, fast=0.5))
    quiet = control_of_run(to_frame(rows)).noise_floor
    wild = [
        replace(with_shadow_shifted([row], 1.5)[0], flags=("noise: 9 of 30 rounds flagged",))
        if row.case == CASES[0]
        else row
        for row in rows
    ]
    control = control_of_run(to_frame(wild))
    assert control.noise_floor < 2 * quiet
    assert control.num_rejected >= 3


def test_rounds_that_follow_each_other_closely_are_inconclusive() -> None:
    waves = np.repeat([1.0, 1.5, 1.0, 1.5], 15)
    rows = []
    for row in draw_rows(CASES[:1], replace(truth_of(passes=1, base=1.0, odd=1.0), num_rounds=60)):
        if row.implementation == "odd":
            times = tuple(
                tuple(t * w for t in calls)
                for calls, w in zip(row.samples.times_s, waves, strict=True)
            )
            row = replace(row, samples=replace(row.samples, times_s=times))
        rows.append(row)
    line = compare(to_frame(rows)).iloc[0]
    assert line["verdict"] == "inconclusive"
    assert line["why"].startswith("dependent")


def with_shadow_shifted(rows: list[Row], factor: float) -> list[Row]:
    return [
        replace(row, shadow=_slowed(replace(row, samples=row.shadow), factor).samples)
        if row.is_baseline
        else row
        for row in rows
    ]


def test_a_run_that_fails_its_control_calls_only_what_is_beyond_the_raised_margin() -> None:
    rows = draw_rows(CASES, truth_of(passes=6, base=1.0, near=1.03, same=1.0, far=2.0))
    frame = to_frame(with_shadow_shifted(rows, 1.05))
    control = control_of_run(frame)
    assert not control.trusted
    assert control.margin(0.03) == pytest.approx(0.1, abs=0.03)
    verdicts = compare(frame).groupby("implementation")["verdict"].unique().map(set)
    assert verdicts["far"] == {"slower"}
    assert verdicts["near"] <= {"untrusted", "inconclusive"}
    assert verdicts["same"] <= {"untrusted", "inconclusive"}


def test_a_case_without_its_baseline_is_compared_with_the_one_that_stood_in() -> None:
    rows = draw_rows(CASES, truth_of(base=1.0, next=0.9, fast=0.5))
    stood_in = []
    for row in rows:
        if row.case == CASES[0] and row.implementation == "base":
            row = replace(row, status=Status.OUT_OF_MEMORY, is_baseline=False)
        if row.case == CASES[0] and row.implementation == "next":
            row = replace(row, is_baseline=True)
        stood_in.append(row)
    found = compare(to_frame(stood_in)).set_index("case_key")
    assert set(found.loc[[CASES[0].key], "against"]) == {"next"}
    assert set(found.loc[[CASES[1].key], "against"]) == {"base"}


def test_the_best_set_says_how_sure_it_is() -> None:
    clear = winners(frame_of(truth_of(base=1.0, fast=0.5, slow=2.0)))
    assert set(clear["state"]) == {"clear"}
    assert set(clear["best"]) == {("fast",)}
    assert set(clear["runner_up"]) == {"base"}
    assert clear["runner_up_ratio"].median() == pytest.approx(2.0, rel=0.01)
    tie = winners(frame_of(truth_of(passes=6, base=2.0, one=1.0, two=1.0)))
    assert set(tie["state"]) == {"tie"}
    assert {frozenset(best) for best in tie["best"]} == {frozenset({"one", "two"})}
    few = replace(truth_of(passes=1, noise=0.06, base=1.0, same=1.0), num_rounds=8)
    unsure = winners(frame_of(few))
    assert list(unsure["state"]).count("unresolved") >= 2
    only = winners(frame_of(truth_of(base=1.0)))
    assert set(only["state"]) == {"only"}


def test_nothing_that_ran_gives_a_case_without_winner_and_the_same_types() -> None:
    truth = Truth({"broken": {}}, statuses={"broken": Status.ERROR})
    frame = frame_of(truth)
    none = winners(frame)
    assert set(none["state"]) == {"none"}
    assert set(none["best"]) == {()}
    some = winners(frame_of(truth_of(base=1.0, fast=0.5)))
    assert none.dtypes.to_dict() == some.dtypes.to_dict()
    assert list(none.columns) == list(WINNER_TYPES)
    assert list(compare(frame).columns) == list(COMPARISON_TYPES)
    assert (
        compare(frame).dtypes.to_dict()
        == compare(frame_of(truth_of(base=1.0, a=1.0))).dtypes.to_dict()
    )


def best_sets_hold_the_truth(runs: int) -> float:
    """Share of cases whose best set holds the implementation that is truly the fastest."""
    hits = []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        names = ("base", "a", "b", "c", "d")
        factors = {name: float(1 + 0.03 * rng.random()) for name in names}
        best = min(factors, key=lambda name: factors[name])
        frame = frame_of(truth_of(passes=int(rng.integers(1, 4)), **factors), seed)
        hits += [best in found for found in winners(frame)["best"]]
    return float(np.mean(hits))


def test_the_best_set_holds_the_true_best_in_at_least_95_percent() -> None:
    assert best_sets_hold_the_truth(runs=40) >= 0.95


@pytest.mark.nightly
def test_the_best_set_holds_the_true_best_in_at_least_95_percent_of_many_runs() -> None:
    assert best_sets_hold_the_truth(runs=500) >= 0.95
