"""When a slow first call has paid for itself."""

import pandas as pd
import pytest

from harness.analysis.break_even import break_even
from harness.analysis.cells import cells_of
from harness.columns import to_frame
from harness.rows import Samples
from tests.synthetic import make_case, make_row


def cells(first_call_s, call_s, baseline_s=0.010):
    def row(name, first, seconds):
        samples = Samples(((seconds,),) * 6, (0,) * 6)
        return make_row(make_case(), name, first_call_s=first, samples=samples)

    rows = [row("sdpa", baseline_s, baseline_s), row("compiled", first_call_s, call_s)]
    return cells_of(to_frame(rows))


def test_the_calls_after_which_it_is_ahead_are_counted():
    line = break_even(cells(first_call_s=5.0, call_s=0.005), "sdpa").iloc[0]
    n = int(line["calls"])
    assert 5.0 + (n - 1) * 0.005 <= n * 0.010
    assert 5.0 + (n - 2) * 0.005 > (n - 1) * 0.010


@pytest.mark.parametrize("call_s", [0.010, 0.020])
def test_one_that_is_not_faster_never_gets_there(call_s):
    assert break_even(cells(5.0, call_s), "sdpa")["calls"].isna().all()


def test_a_usual_first_call_is_not_worth_a_word():
    assert break_even(cells(first_call_s=0.02, call_s=0.005), "sdpa").empty


def test_a_baseline_that_was_not_measured_leaves_nothing_to_say():
    found = break_even(cells(5.0, 0.005), "naive")
    assert isinstance(found, pd.DataFrame)
    assert found.empty
