"""Two runs are compared as far as is honest, and no further."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.analysis.between import RunComparison, compare_runs
from harness.analysis.cells import cells_of
from harness.analysis.compare import compare
from harness.analysis.gate import breaches_between, breaches_within, check_fail_on
from harness.columns import to_frame
from harness.errors import InvalidValueError
from harness.rows import Row, Status
from tests.synthetic import Truth, draw_rows, make_case

CASES = [make_case(n) for n in (128, 256)]
ENVIRONMENT: dict[str, Any] = {
    "hardware": {
        "cpu": {"model": "one", "architecture": "x86_64", "cores_usable": 2},
        "gpus": [],
        "memory_bytes": 8,
    },
    "software": {"packages": {"torch": "2.13.0", "numpy": "2.4"}},
    "commit": "abc",
}


def run_of(seed: int, factor: float = 1.0, passes: int = 3, noise: float = 0.05) -> list[Row]:
    seconds = {name: {case.id: 1e-3 for case in CASES} for name in ("naive", "sdpa")}
    seconds["sdpa"] = {case.id: factor * 0.5e-3 for case in CASES}
    return draw_rows(CASES, Truth(seconds, noise=noise, passes=passes, process_spread=0.005), seed)


def compared(
    old: list[Row], new: list[Row], new_environment: dict[str, Any] | None = None
) -> RunComparison:
    environment = new_environment or ENVIRONMENT
    return compare_runs(to_frame(old), to_frame(new), ENVIRONMENT, environment)


def test_the_same_code_twice_is_no_change_and_a_true_slowdown_is_slower() -> None:
    """C80: 5 % of noise; a fixed threshold flags both."""
    false_alarms, seen = 0, 0
    for seed in range(8):
        same = compared(run_of(2 * seed), run_of(2 * seed + 1)).table
        false_alarms += same["verdict"].isin(["slower", "faster"]).sum()
        slowed = compared(run_of(2 * seed), run_of(2 * seed + 1, factor=1.2)).table
        assert not slowed["verdict"].eq("faster").any()
        seen += slowed.loc[slowed["implementation"] == "sdpa", "verdict"].eq("slower").sum()
    assert false_alarms <= 1
    assert seen >= 0.8 * 8 * len(CASES)


def test_one_process_a_run_needs_a_larger_difference_and_says_so() -> None:
    result = compared(run_of(0, passes=1), run_of(1, 1.08, passes=1))
    assert result.margin >= 0.10
    assert any("One process per case" in line for line in result.statement)
    assert not result.table["verdict"].eq("slower").any()


def test_times_of_different_hardware_are_not_judged_but_the_rest_is() -> None:
    other = copy.deepcopy(ENVIRONMENT)
    other["hardware"]["cpu"]["model"] = "two"
    new = [replace(row, peak_alloc_bytes=10**9) if row.implementation == "sdpa" else row
           for row in run_of(1, factor=3.0)]  # fmt: skip
    result = compared(run_of(0), new, other)
    assert result.hardware == ("cpu.model: one -> two",)
    assert result.table["ratio"].isna().all()
    assert set(result.table["verdict"]) == {"none"}
    assert set(result.table["why"]) == {"different hardware"}
    sdpa = result.table[result.table["implementation"] == "sdpa"]
    assert set(sdpa["findings"]) == {"more_memory"}


def test_changed_packages_are_named_and_forbid_nothing() -> None:
    other = copy.deepcopy(ENVIRONMENT)
    other["software"]["packages"]["torch"] = "2.14.0"
    other["commit"] = "def"
    result = compared(run_of(0), run_of(1), other)
    assert result.hardware == ()
    assert result.circumstances == ("packages.torch: 2.13.0 -> 2.14.0", "commit: abc -> def")
    assert result.table["ratio"].notna().all()


def test_what_became_wrong_or_less_exact_is_found() -> None:
    old = run_of(0)
    new = [_spoiled(row) for row in run_of(1)]
    table = compared(old, new).table.set_index(["case_id", "implementation"])
    assert table.loc[(CASES[0].id, "sdpa"), "findings"] == "incorrect"
    assert table.loc[(CASES[0].id, "sdpa"), "verdict"] == "none"
    assert table.loc[(CASES[1].id, "sdpa"), "findings"] == "less_exact"


def _spoiled(row: Row) -> Row:
    if row.implementation != "sdpa":
        return row
    if row.case == CASES[0]:
        return replace(row, status=Status.INCORRECT)
    return replace(row, errors={"o": {"scaled_u": 4.0}})


def test_cells_of_one_run_only_are_listed_as_new_or_missing() -> None:
    old = [row for row in run_of(0) if row.case == CASES[0]]
    new = [row for row in run_of(1) if row.implementation == "naive"]
    table = compared(old, new).table.set_index(["case_id", "implementation"])
    assert table.loc[(CASES[1].id, "naive"), "findings"] == "new"
    assert table.loc[(CASES[0].id, "sdpa"), "findings"] == "missing"
    assert table.loc[(CASES[0].id, "sdpa"), "status_new"] == "none"


def test_a_shift_of_the_fixed_work_beside_the_cells_is_said() -> None:
    def with_canary(rows: list[Row], seconds: float) -> list[Row]:
        return [replace(row, canary_times_s=(seconds,) * 5) for row in rows]

    result = compared(with_canary(run_of(0), 1e-3), with_canary(run_of(1), 1.1e-3))
    assert any("Fixed work timed beside them: +10.0 %" in line for line in result.statement)


def test_runs_without_a_common_cell_give_a_table_and_no_ratio() -> None:
    result = compared(run_of(0), [])
    assert set(result.table["findings"]) == {"missing"}
    assert compared([], []).table.empty


def test_the_gate_names_what_it_was_asked_for() -> None:
    slowed = compared(run_of(0), run_of(1, factor=1.5))
    found = breaches_between(slowed, ["slower", "incorrect"])
    assert len(found) == 2
    assert all(line.startswith("slower: sdpa on b1-h64x4") for line in found)
    assert breaches_between(slowed, ["incorrect"]) == []


def test_the_gate_within_a_run_compares_with_the_reference() -> None:
    rows = [
        replace(row, peak_alloc_bytes=10**9, errors={"o": {"scaled_u": 9.0}})
        if row.implementation == "sdpa"
        else row
        for row in run_of(0, factor=4.0)
    ]
    frame = to_frame(rows)
    cells, comparisons = cells_of(frame), compare(frame)
    kinds = {line.partition(":")[0] for line in breaches_within(cells, comparisons, check_fail_on(
        ["slower", "incorrect", "more_memory", "less_exact"]))}  # fmt: skip
    assert kinds == {"slower", "more_memory", "less_exact"}
    wrong = to_frame([replace(row, status=Status.INCORRECT, reasons=("off by 3",)) for row in rows])
    found = breaches_within(cells_of(wrong), compare(wrong), ["incorrect"])
    assert len(found) == 4
    assert found[0].endswith("off by 3")


def test_an_unknown_finding_is_refused_with_the_choices() -> None:
    with pytest.raises(InvalidValueError, match=r"fail-on.*'slowr'.*slower, incorrect"):
        check_fail_on(["slowr"])


def test_the_table_has_fixed_types() -> None:
    full, empty = compared(run_of(0), run_of(1)).table, compared([], []).table
    assert full.dtypes.to_dict() == empty.dtypes.to_dict()
    assert isinstance(full, pd.DataFrame)
    assert np.all(full["ratio_low"] < full["ratio_high"])
