"""Which share of a standard sweep's time goes into checking against float64: at most a quarter.

    pytest tests/benchmarks/test_judging_cost.py --benchmark-only -s

One pass of cells with up to 2048 queries under ``measure=standard``, with the share that their rows
record: exact results once for a cell, judging once for an implementation. Each cell takes up to a
minute.
"""

from pathlib import Path

import pytest
import yaml

from harness.analysis.judging import judging_share
from harness.cells import Cell, Site, measure_cell
from harness.columns import to_frame
from harness.jobs import Ceilings
from harness.rows import Status
from harness.settings import ImplementationSpec, MeasureSettings
from harness.worker import ForkServer, Limits
from tests.pipeline import a_case

LARGEST_SHARE = 0.25
_PRESET = Path(__file__).parent.parent.parent / "conf" / "measure" / "standard.yaml"
STANDARD = MeasureSettings(**yaml.safe_load(_PRESET.read_text()))
SPECS = (
    ImplementationSpec("sdpa", "implementations.sdpa:Sdpa"),
    ImplementationSpec("sdpa_math", "implementations.sdpa:SdpaMath"),
    ImplementationSpec("naive", "implementations.naive:Naive"),
    ImplementationSpec("chunked", "implementations.chunked:Chunked"),
)
# hidden size, heads, sequence length, mode, scope, dtype
CELLS = (
    (768, 12, 512, "forward", "attention", "float32"),
    (1024, 16, 1024, "forward", "attention", "bfloat16"),
    (1024, 16, 2048, "forward", "attention", "float32"),
    (4096, 32, 2048, "forward", "attention", "float32"),
    (1024, 16, 1024, "forward", "layer", "float32"),
    (1024, 16, 1024, "forward_backward", "attention", "float32"),
    (1024, 16, 2048, "forward_backward", "attention", "bfloat16"),
    (4096, 32, 2048, "forward_backward", "attention", "float32"),
)


@pytest.fixture(scope="module")
def site():
    server = ForkServer()
    return Site(server, Limits(600.0), "run", "", "sdpa", Ceilings(), lambda case, name: "")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, cell)))
def test_checking_takes_at_most_a_quarter_of_a_cell(benchmark, site, cell):
    axes = dict(
        zip(("hidden_size", "num_heads", "seq_len", "mode", "scope", "dtype"), cell, strict=True)
    )
    case = a_case(**axes, batch_size=1, threads=2)
    rows = benchmark.pedantic(lambda: measure_cell(site, Cell(case, 0), SPECS, STANDARD), rounds=1)
    assert all(row.status is Status.OK for row in rows.values()), rows
    share = judging_share(to_frame(rows.values()))
    benchmark.extra_info["share"] = share
    print(f"\n{case.id}: {share:.1%} of the time")
    assert share <= LARGEST_SHARE
