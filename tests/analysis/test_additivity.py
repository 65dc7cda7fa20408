"""Modes that time the same work cut differently must add up."""

import pytest

from harness.analysis.additivity import additivity
from harness.analysis.cells import cells_of
from harness.columns import to_frame
from harness.rows import Samples, Status
from tests.synthetic import make_case, make_row


def cells(**seconds_by_mode):
    rows = [
        make_row(make_case(mode=mode), samples=Samples(((s,),) * 6, (0,) * 6))
        for mode, s in seconds_by_mode.items()
    ]
    return cells_of(to_frame(rows))


def test_parts_that_sum_to_the_whole_add_up():
    line = additivity(cells(forward_train=1.0, backward=2.0, forward_backward=3.1)).iloc[0]
    assert (line["parts_s"], line["whole_s"]) == (3.0, 3.1)
    assert line["gap"] == pytest.approx(3.0 / 3.1 - 1)
    assert line["adds_up"]


@pytest.mark.parametrize("whole", [2.8, 3.2])
def test_a_gap_of_more_than_five_percent_either_way_is_found(whole):
    found = additivity(cells(forward_train=1.0, backward=2.0, forward_backward=whole))
    assert not found.iloc[0]["adds_up"]


def test_nothing_is_said_where_a_mode_is_missing():
    assert additivity(cells(forward_train=1.0, forward_backward=3.0)).empty
    assert additivity(cells(forward=1.0)).empty


def test_failed_cells_do_not_take_part():
    rows = [make_row(make_case(mode=m), status=Status.ERROR) for m in ("backward", "forward")]
    assert additivity(cells_of(to_frame(rows))).empty
