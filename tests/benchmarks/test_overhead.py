"""What a cell costs beyond calling the implementations and the oracle.

    pytest tests/benchmarks/test_overhead.py --benchmark-only

Two workers (timing and memory), inputs, admission and one stored row of a case so small that calls
and oracle take next to nothing.
"""

import pytest

from harness.cells import Cell, Site, measure_cell
from harness.jobs import Ceilings
from harness.rows import Status
from harness.settings import ImplementationSpec, MeasureSettings
from harness.store import ShardWriter, create_run
from harness.worker import ForkServer, Limits
from tests.pipeline import a_case

NO_ROUNDS = MeasureSettings(
    budget_s=0.0, warmup_min_s=0.0, warmup_max_s=0.0, max_rounds=1, memory_repeats=1
)
SPECS = (
    ImplementationSpec("naive", "implementations.naive:Naive"),
    ImplementationSpec("sdpa", "implementations.sdpa:Sdpa"),
)


@pytest.fixture(scope="module")
def site():
    server = ForkServer()
    return Site(server, Limits(30.0), "run", "", "sdpa", Ceilings(), lambda case, name: "")


def test_overhead_of_a_cell(benchmark, site, tmp_path):
    with ShardWriter(create_run(tmp_path)) as shard:

        def cell():
            rows = measure_cell(site, Cell(a_case(), 0), SPECS, NO_ROUNDS)
            for row in rows.values():
                shard.append(row)
            return rows

        rows = benchmark.pedantic(cell, rounds=15, warmup_rounds=2)
    assert all(row.status is Status.OK for row in rows.values())
