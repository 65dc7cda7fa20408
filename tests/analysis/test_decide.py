"""A decision keeps its constraints, weighs the workload, and prices each choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.analysis.decide import Constraints, decide
from harness.analysis.pareto import pareto
from harness.analysis.regret import Cell, best_rule, fixed_choices
from harness.analysis.scaling import scaling
from harness.analysis.workload import Demand, read_requests, read_workload, weigh
from harness.columns import to_frame
from harness.errors import InvalidValueError
from harness.rows import Row, Status
from tests.analysis.laws import Law, run_with_laws, seconds_of
from tests.synthetic import Truth, draw_rows, make_case

SHORT: Law = (1e-5, 0.0, 1e-9)  # quick on short lengths
LONG: Law = (1e-4, 2e-7, 0.0)  # quick on long ones


def cells(*times: dict[str, float], se: float = 0.0) -> list[Cell]:
    return [
        Cell(str(i), 1 / len(times), t, dict.fromkeys(t, se), position=float(i))
        for i, t in enumerate(times)
    ]


def test_regret_is_the_time_lost_against_the_best_of_each_cell() -> None:
    first, second = fixed_choices(cells({"a": 1.0, "b": 2.0}, {"a": 4.0, "b": 3.0}))
    assert (first.policy, second.policy) == ("a", "b")
    assert [first.regret, second.regret] == pytest.approx([0.25, 0.25])
    assert first.num_cells == 2


def test_a_choice_that_covers_less_comes_after_one_that_covers_all() -> None:
    first, second = fixed_choices(cells({"a": 9.0, "b": 1.0}, {"a": 9.0}))
    assert (first.policy, second.policy) == ("a", "b")
    assert (second.uncovered, second.num_cells) == (0.5, 1)
    assert second.regret == 0.0


def test_a_rule_that_beats_every_fixed_choice_is_found() -> None:
    rule = best_rule(cells({"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0}), "seq_len")
    assert rule is not None
    assert rule.policy == "a up to seq_len 0, b beyond"
    assert rule.regret == 0.0
    assert best_rule(cells({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}), "seq_len") is None


def test_the_interval_of_a_regret_holds_the_spread_of_its_cells() -> None:
    (_, b) = fixed_choices(cells({"a": 1.0, "b": 1.2}, {"a": 1.0, "b": 1.2}, se=0.01))
    half = 1.96 * 1.2 * 0.01 / np.sqrt(2)
    assert [b.low, b.high] == pytest.approx([0.2 - half, 0.2 + half], rel=1e-3)


def test_the_fastest_as_measured_is_not_priced_as_if_it_were_sure() -> None:
    """Another one may truly be ahead, and the upper end says by how much."""
    cases = [make_case(n) for n in (128, 512)]
    seconds = {name: {c.id: 1e-3 for c in cases} for name in ("one", "two")}
    rough = to_frame(draw_rows(cases, Truth(seconds, noise=0.1, num_rounds=8)))
    fine = to_frame(draw_rows(cases, Truth(seconds, noise=0.01, passes=6)))
    assert decide(rough).fixed[0].high > 0.02
    assert decide(fine).fixed[0].high < 0.01


def test_without_constraints_the_cheapest_choice_wins_and_the_flip_is_named() -> None:
    decision = decide(run_with_laws({"short": SHORT, "long": LONG}))
    assert decision.best == ("long",)
    assert decision.rule is not None
    assert decision.rule.policy == "short up to seq_len 256, long beyond"
    assert decision.rule.regret == pytest.approx(0.0, abs=0.01)
    (flip,) = decision.crossovers
    assert (flip.below, flip.above) == ("short", "long")
    assert list(decision.cells["fastest"]) == ["short", "short", "long", "long", "long"]
    assert decision.uncovered == 0


def test_the_workload_changes_the_answer() -> None:
    rows = run_with_laws({"short": SHORT, "long": LONG})
    decision = decide(rows, workload=read_workload("seq_len=128:99,seq_len=2048:1"))
    assert decision.best == ("short",)
    assert decision.cells["weight"].sum() == pytest.approx(1.0)


def test_lengths_beyond_the_measured_ones_are_said_not_to_be_covered() -> None:
    rows = run_with_laws({"short": SHORT, "long": LONG})
    decision = decide(rows, workload=read_workload("seq_len=128:3,seq_len=9000:1"))
    assert decision.uncovered == pytest.approx(0.25)
    assert decision.uncovered_examples == ("seq_len=9000",)


def changed(rows: list[Row], name: str, **fields: object) -> list[Row]:
    return [replace(r, **fields) if r.implementation == name else r for r in rows]  # type: ignore[arg-type]


def three(passes: int = 2) -> list[Row]:
    cases = [make_case(n) for n in (128, 512)]
    seconds = {name: {c.id: t * c.config.seq_len * 1e-6 for c in cases}
               for name, t in (("naive", 3.0), ("lean", 2.0), ("quick", 1.0))}  # fmt: skip
    return draw_rows(cases, Truth(seconds, passes=passes))


@pytest.mark.parametrize(
    ("fields", "constraints", "reason"),
    [
        ({"peak_alloc_bytes": 10**9}, Constraints(max_memory_bytes=10**8), "memory over the limit"),
        (
            {"errors": {"o": {"scaled_u": 50.0}}},
            Constraints(max_error_u=10),
            "error over the limit",
        ),
        (
            {"peak_alloc_bytes": None},
            Constraints(max_memory_bytes=10**8),
            "memory was not measured",
        ),
        ({"status": Status.INCORRECT}, Constraints(), "incorrect"),
    ],
)
def test_what_breaks_a_constraint_is_not_chosen_and_the_reason_is_given(
    fields: dict[str, object], constraints: Constraints, reason: str
) -> None:
    decision = decide(to_frame(changed(three(), "quick", **fields)), constraints)
    assert decision.best == ("lean",)
    (exclusion,) = decision.exclusions
    assert (exclusion.implementation, exclusion.reason, exclusion.num_cells) == ("quick", reason, 2)


def test_a_latency_limit_counts_per_cell() -> None:
    decision = decide(to_frame(three()), Constraints(max_latency_s=0.6e-3))
    assert decision.best == ("quick",)
    assert {(e.implementation, e.num_cells) for e in decision.exclusions} == {
        ("naive", 1),
        ("lean", 1),
    }


def test_an_implementation_must_be_right_on_every_mask_that_is_asked_for() -> None:
    rows = three()
    causal = [replace(r, case=make_case(r.case.config.seq_len, mask="causal")) for r in rows]
    causal = changed(causal, "quick", status=Status.UNSUPPORTED, reasons=("no causal",))
    frame = to_frame([*rows, *causal])
    assert decide(frame, Constraints(axes={"mask": "none"})).best == ("quick",)
    assert decide(frame, Constraints(must_support=("causal",))).best == ("lean",)
    with pytest.raises(InvalidValueError, match="a mask that the run has"):
        decide(frame, Constraints(must_support=("bias:alibi",)))


def test_cells_can_be_restricted_to_values_of_axes() -> None:
    with pytest.raises(InvalidValueError, match=r"device.*choices: cpu"):
        decide(to_frame(three()), Constraints(axes={"device": "cuda"}))
    with pytest.raises(InvalidValueError, match="the name of an axis"):
        decide(to_frame(three()), Constraints(axes={"colour": "red"}))
    decision = decide(to_frame(three()), Constraints(axes={"seq_len": 512}))
    assert len(decision.cells) == 1


def test_when_nothing_is_left_the_decision_says_so() -> None:
    decision = decide(to_frame(three()), Constraints(max_latency_s=1e-9))
    assert decision.best == ()
    assert set(decision.cells["state"]) == {"none"}
    assert decision.cells["best"].map(len).sum() == 0


def test_requests_are_read_from_a_file_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("seq_len\n128\n512\n128\n128\n")
    demands = read_requests(path)
    assert {(d.axes["seq_len"], d.weight) for d in demands} == {(128, 3.0), (512, 1.0)}
    path.write_text("seq_len,batch_size,count\n128,1,10\n512,4,5\n")
    assert [d.weight for d in read_requests(path)] == [10.0, 5.0]
    path.write_text("length\n128\n")
    with pytest.raises(InvalidValueError, match="the name of an axis"):
        read_requests(path)
    with pytest.raises(InvalidValueError, match="a readable CSV file"):
        read_requests(tmp_path / "absent.csv")


@pytest.mark.parametrize("text", ["seq_len=128:-1", "seq_len=128:x", "seq_len=long", "size=3"])
def test_a_workload_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="workload"):
        read_workload(text)


def test_a_length_between_two_measured_ones_is_shared_so_that_time_is_a_straight_line() -> None:
    cases = pd.DataFrame({"case_key": ["a", "b"], "seq_len": [100, 300]})
    weights = weigh(cases, [Demand({"seq_len": 150})])
    assert weights.by_case == {"a": pytest.approx(0.75), "b": pytest.approx(0.25)}
    assert weigh(cases, None).by_case == {"a": 0.5, "b": 0.5}


def test_the_best_fixed_choice_holds_the_truth_in_at_least_95_percent() -> None:
    hits = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        laws: dict[str, Law] = {
            name: (1e-5, 0.0, 1e-9 * (1 + 0.03 * float(rng.random()))) for name in "abcd"
        }
        rows = run_with_laws(laws, seed, lengths=(256, 1024))
        totals = {
            n: sum(seconds_of(law, make_case(s)) for s in (256, 1024)) for n, law in laws.items()
        }
        hits.append(min(totals, key=lambda n: totals[n]) in decide(rows).best)
    assert float(np.mean(hits)) >= 0.95


def holds_the_truth(seed: int) -> bool:
    """Four within 3 %, of six lengths two with too few rounds for an interval."""
    rng = np.random.default_rng([seed, 11])
    lengths, short = (128, 256, 512, 1024, 2048, 4096), (512, 4096)
    laws: dict[str, Law] = {
        name: (1e-5, 0.0, 1e-9 * (1 + 0.03 * float(rng.random()))) for name in "abcd"
    }
    rows = run_with_laws(laws, seed, lengths=lengths, passes=1)
    is_short = rows["seq_len"].isin(short)
    for column in ("times_s", "shadow_times_s"):
        rows[column] = [
            times[:4] if cut else times for times, cut in zip(rows[column], is_short, strict=True)
        ]
    decision = decide(rows)
    assert len(decision.open_cases) == len(short)
    decided = [make_case(n) for n in lengths if n not in short]
    totals = {n: sum(seconds_of(law, case) for case in decided) for n, law in laws.items()}
    return min(totals, key=lambda n: totals[n]) in decision.best


def test_the_best_set_holds_the_truth_when_some_cells_are_open() -> None:
    assert float(np.mean([holds_the_truth(seed) for seed in range(20)])) >= 0.95


@pytest.mark.nightly
def test_the_best_set_holds_the_truth_when_some_cells_are_open_in_many_runs() -> None:
    assert float(np.mean([holds_the_truth(seed) for seed in range(300)])) >= 0.95


def test_an_implementation_that_is_worse_in_all_respects_is_dominated() -> None:
    rows = changed(three(), "naive", peak_alloc_bytes=10**9)
    rows = changed(rows, "lean", peak_alloc_bytes=1000)
    found = pareto(to_frame(rows)).groupby("implementation")["dominated_by"].unique().map(list)
    assert found["quick"] == ["none"]
    assert found["lean"] == ["none"]  # slower, but needs less memory
    assert found["naive"] == ["lean"]


def test_what_was_not_measured_dominates_nothing() -> None:
    rows = changed(three(), "quick", peak_alloc_bytes=None)
    found = pareto(to_frame(rows)).groupby("implementation")["dominated_by"].unique().map(list)
    assert found["lean"] == ["none"]


def test_heads_are_traded_over_matched_cells_only() -> None:
    cases = [make_case(n, hidden_size=64, num_heads=h) for n in (128, 512) for h in (2, 4, 8)][:-1]
    seconds = {"naive": {c.id: 1e-6 * c.config.seq_len * c.config.num_heads for c in cases}}
    table = scaling(to_frame(draw_rows(cases, Truth(seconds, passes=3))), "num_heads")
    by_heads = table.set_index("value")
    assert by_heads["num_matched"].to_dict() == {4.0: 2, 8.0: 1}
    assert by_heads["time_ratio"].to_dict() == pytest.approx({4.0: 2.0, 8.0: 4.0}, rel=0.15)
    assert set(by_heads["memory_ratio"]) == {1.0}
    assert (table["time_low"] < table["time_ratio"]).all()
