"""A case beyond the oracle's limit, measured: what its row says of the gradients of a source."""

from __future__ import annotations

import pytest
import torch

from harness.jobs import Job, RowMessage
from harness.measuring import allocator
from harness.measuring.bench import measure_case
from harness.numerics import certification
from harness.rows import Status
from harness.settings import ImplementationSpec, MeasureSettings
from tests.pipeline import QUICK, a_case

CHUNKED = ImplementationSpec("chunked", "implementations.chunked:Chunked")


class Collecting:
    """A channel that keeps the final rows."""

    def __init__(self):
        self.rows = []

    def send(self, message):
        if isinstance(message, RowMessage) and message.is_final:
            self.rows.append(message.row)

    def enter(self, index):
        assert index is None or index >= 0


@pytest.fixture
def in_this_process(monkeypatch):
    """Measuring here, so that the limit can be set; leaves torch's settings as they were."""
    was_enabled, threads = torch.is_grad_enabled(), torch.get_num_threads()
    monkeypatch.setattr(allocator, "set_for_timing", lambda which: None)
    monkeypatch.setattr(certification, "SAMPLED_ROWS", 16)
    monkeypatch.setattr(certification, "MAX_ORACLE_FLOP", 1e4)
    yield
    torch.set_grad_enabled(was_enabled)
    torch.set_num_threads(threads)


def row_of(mode):
    case = a_case(batch_size=1, scope="layer", mode=mode)
    measure = MeasureSettings(**QUICK)
    job = Job(
        run_id="run",
        case=case,
        specs=(CHUNKED,),
        baseline="chunked",
        pass_index=0,
        measure=measure,
        process="here",
    )
    channel = Collecting()
    measure_case(job, channel)
    (row,) = channel.rows
    assert row.status is Status.OK, row.reasons
    return row


def test_a_row_has_the_error_of_a_source_from_the_rows_that_were_fed_back(in_this_process):
    found = row_of("forward_backward").errors["dx"]
    assert found["certified"] == "15 of 33 rows, fed back from 15 of 33 rows"
    assert 0 < found["bound_share"] < 1
    assert "reason" not in found


def test_where_a_second_graph_would_be_held_the_row_says_why_there_is_no_error(in_this_process):
    found = row_of("backward").errors["dx"]
    assert found["reason"].startswith("too large for the oracle: one element sums over all 3 heads")
