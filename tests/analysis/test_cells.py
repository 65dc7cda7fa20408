"""A cell is all passes of one implementation on one case."""

from __future__ import annotations

import pandas as pd
import pytest

from harness.analysis.cells import cells_of, join_distinct, varying_axes, worst_status
from harness.columns import to_frame
from harness.rows import Samples, Status
from tests.synthetic import Truth, draw_rows, make_case, make_row


def passes(*statuses: Status) -> pd.DataFrame:
    return to_frame([make_row(status=s, pass_index=i) for i, s in enumerate(statuses)])


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((Status.OK, Status.OK), "ok"),
        ((Status.OK, Status.CRASHED, Status.OK), "crashed"),
        ((Status.CRASHED, Status.INCORRECT), "incorrect"),
        ((Status.TIMEOUT, Status.OUT_OF_MEMORY), "out_of_memory"),
        ((Status.UNSUPPORTED, Status.UNSUPPORTED), "unsupported"),
    ],
)
def test_a_cell_has_the_worst_status_of_its_passes(
    statuses: tuple[Status, ...], expected: str
) -> None:
    (status,) = cells_of(passes(*statuses))["status"]
    assert status == expected


def test_every_status_has_its_place_in_the_order_of_severity() -> None:
    assert {worst_status([status]) for status in Status} == {status.value for status in Status}


def test_times_are_medians_and_memory_and_errors_the_largest_of_the_passes() -> None:
    rows = [
        make_row(
            pass_index=i,
            samples=Samples(((seconds,),), (0,)),
            peak_alloc_bytes=100 * (i + 1),
            errors={"o": {"max_abs": 0.1 * i}},
        )
        for i, seconds in enumerate((1.0, 5.0, 2.0))
    ]
    cell = cells_of(to_frame(rows)).iloc[0]
    assert cell["median_s"] == 2.0
    assert cell["peak_alloc_bytes"] == 300
    assert cell["o_max_abs"] == 0.2
    assert (cell["num_passes"], cell["num_ok"]) == (3, 3)


def test_findings_of_several_passes_are_named_once() -> None:
    assert join_distinct(["a; b", "", "b; c"]) == "a; b; c"


def test_types_do_not_depend_on_what_happened() -> None:
    good = cells_of(to_frame([make_row(samples=Samples(((1.0,),), (0,)))]))
    bad = cells_of(passes(Status.ERROR))
    none = cells_of(passes())
    assert good.dtypes.to_dict() == bad.dtypes.to_dict() == none.dtypes.to_dict()
    assert len(none) == 0


def test_cells_come_in_the_order_of_their_axes() -> None:
    rows = [make_row(make_case(seq_len=n)) for n in (1024, 128, 512)]
    assert list(cells_of(to_frame(rows))["seq_len"]) == [128, 512, 1024]


def test_axes_that_follow_from_others_do_not_count_as_varying() -> None:
    cases = [make_case(n, hidden_size=64, num_heads=h) for n in (8, 16) for h in (2, 4)]
    cells = cells_of(to_frame([make_row(case) for case in cases]))
    assert varying_axes(cells) == ["num_heads", "seq_len"]


def test_axes_that_vary_for_themselves_are_named() -> None:
    cases = [
        make_case(8, kv_seq_len=8),
        make_case(8, kv_seq_len=16),
        make_case(8, num_kv_heads=2, mask="causal"),
    ]
    cells = cells_of(to_frame([make_row(case) for case in cases]))
    assert set(varying_axes(cells)) == {"kv_seq_len", "num_kv_heads", "mask"}


def test_a_synthetic_run_has_a_cell_for_every_case_and_implementation() -> None:
    cases = [make_case(8), make_case(16)]
    truth = Truth({"a": {c.id: 1.0 for c in cases}, "b": {c.id: 2.0 for c in cases}}, passes=2)
    assert len(cells_of(to_frame(draw_rows(cases, truth)))) == 4
