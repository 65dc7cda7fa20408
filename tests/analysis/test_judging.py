"""The share of the time that goes into checking against float64."""

from __future__ import annotations

import pytest

from harness.analysis.judging import judging_share
from harness.columns import to_frame
from harness.rows import Status
from tests.synthetic import make_row


def test_the_reference_counts_once_for_a_process_and_judging_for_each_row() -> None:
    rows = [
        make_row(implementation="a", reference_s=1.0, judging_s=0.5, wall_s=9.0),
        make_row(implementation="b", reference_s=1.0, judging_s=0.5, wall_s=10.0),
        make_row(implementation="c", reference_s=1.0, judging_s=1.0, status=Status.INCORRECT),
        make_row(implementation="d", status=Status.UNSUPPORTED),
    ]
    assert judging_share(to_frame(rows)) == pytest.approx(0.3)


def test_a_process_that_timed_nobody_has_no_share() -> None:
    rows = [make_row(reference_s=1.0, judging_s=1.0, status=Status.INCORRECT)]
    assert judging_share(to_frame(rows)) is None


def test_rows_of_older_versions_have_none() -> None:
    assert judging_share(to_frame([make_row(wall_s=3.0)])) is None
