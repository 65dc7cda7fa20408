"""Cases of a sweep under pytest-benchmark's own fixture, memory and error in ``extra_info``.

    pytest tests/benchmarks/test_cases.py --benchmark-only --benchmark-group-by=param:case

For those who live in that tool. It times one implementation after the other, so its figures don't
pair; ``mha-bench report --format pytest-benchmark`` exports a run whose figures do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from harness.attention import Case
from harness.cells import Cell, Site, measure_cell
from harness.inputs.sets import make_inputs
from harness.jobs import Ceilings
from harness.measuring.modes import make_call
from harness.plugins.registry import load_implementation
from harness.rows import Row, Status
from harness.settings import ImplementationSpec, MeasureSettings
from harness.worker import ForkServer, Limits
from tests.synthetic import make_case

SPECS = {
    spec.name: spec
    for spec in (
        ImplementationSpec("naive", "implementations.naive:Naive"),
        ImplementationSpec("sdpa", "implementations.sdpa:Sdpa"),
    )
}
CASES = {
    case.id: case
    for case in (make_case(n, hidden_size=256, num_heads=4, threads=1) for n in (128, 512))
}
_ONE_ROUND = MeasureSettings(
    budget_s=0.0, warmup_min_s=0.0, warmup_max_s=0.0, max_rounds=1, memory_repeats=1
)


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Row]:
    """Memory and error of every cell, measured in workers of their own."""
    site = Site(ForkServer(), Limits(60.0), "run", "", "naive", Ceilings(), lambda case, name: "")
    return {
        (case_id, name): row
        for case_id, case in CASES.items()
        for name, row in measure_cell(
            site, Cell(case, 0), tuple(SPECS.values()), _ONE_ROUND
        ).items()
    }


@pytest.fixture
def threads_of_the_case() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads_of_the_case")
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("case", CASES)
def test_a_case(
    benchmark: BenchmarkFixture, rows: dict[tuple[str, str], Row], case: str, name: str
) -> None:
    row = rows[(case, name)]
    assert row.status is Status.OK, row.reasons
    measured: Case = CASES[case]
    call = make_call(load_implementation(SPECS[name]), measured, make_inputs(measured))
    benchmark.extra_info |= {
        "peak_alloc_bytes": row.peak_alloc_bytes,
        "errors": {output: dict(found) for output, found in row.errors.items()},
        "kernel": row.kernel,
        "case_key": measured.key,
    }
    benchmark(call.run)
    assert benchmark.extra_info["peak_alloc_bytes"] > 0
