"""What each stage of the tile kernels costs, in ns per 16 x 16 block of scores, on one thread::

    python -m tests.benchmarks.fused_stages

Builds the kernels a second time, with clocks between the stages, into a temporary folder (half a
minute; needs the compiler). That build does one stage after the other; the product takes products
and exponentials in turns, so that they overlap: ``apart`` less ``product`` is what that gains.
Calls of both and of torch's SDPA alternate; medians. Beside the forward table's shapes stand those
where another stage sets the pace: mask tensors, views of a packed qkv, few queries on many keys.
Above stands the speed of a bfloat16 product, which loads tiles: far below its usual figure, the
machine was in a slow state, and so is all under it.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from rich.console import Console
from rich.table import Table

from harness.attention import Case
from harness.cost import unmasked_pairs
from harness.inputs.sets import make_inputs
from harness.interface import AttentionInputs
from implementations.fused import Fused
from implementations.sdpa import Sdpa
from tests.benchmarks.fused.attention_tables import SHAPES, packed_views
from tests.benchmarks.fused.plans import attention_case

STAGES = ("pack", "load Q", "mask, maxima", "Q K^T", "exp", "P V", "write")  # as in stage_clock.h
_ROOT = Path(__file__).parents[2]


def counting_kernels(folder: str) -> ModuleType:
    """The kernels built with a clock at each stage."""
    build = ("build_ext", "--define", "FUSED_STAGE_COSTS", "--build-lib", folder)
    command = (sys.executable, "setup.py", "-q", *build, "--build-temp", folder)
    subprocess.run(command, cwd=_ROOT, check=True, capture_output=True)
    (path,) = Path(folder).rglob("_kernels*.so")
    loader = importlib.machinery.ExtensionFileLoader("counting._kernels", str(path))
    spec = importlib.util.spec_from_file_location("counting._kernels", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def costs(counting: ModuleType, case: Case, inputs: AttentionInputs, rounds: int) -> list[float]:
    """Nanoseconds per block of scores: every stage, the rest, all apart, the product, SDPA."""
    implementation = Fused(path="amx")
    product, sdpa = implementation.prepare(case, inputs), Sdpa().prepare(case, inputs)
    plan = implementation.plan(case.config, inputs.masks)
    plan._run = counting.run

    def apart() -> None:
        plan.forward(inputs.q, inputs.k, inputs.v, plan.new_output(), None)

    figures = []
    for _ in range(rounds + 1):
        counting.stage_ticks()
        apart_s = seconds(apart)
        *stages, whole = counting.stage_ticks()
        stages_s = [ticks / whole * apart_s for ticks in stages]
        rest_s = apart_s - sum(stages_s)
        figures.append([*stages_s, rest_s, apart_s, seconds(product), seconds(sdpa)])
    blocks = unmasked_pairs(case.config) / 256
    return [statistics.median(f) * 1e9 / blocks for f in zip(*figures[1:], strict=True)]


def tile_product_gflops() -> float:
    x = torch.randn(512, 512).bfloat16()
    return 2 * 512**3 / min(seconds(lambda: x @ x) for _ in range(20)) / 1e9


@dataclass(frozen=True)
class Line:
    """A case of the table; ``kind`` is its mask, or ``views`` of a packed qkv."""

    num_heads: int
    seq_len: int
    head_dim: int
    kind: str
    kv_seq_len: int | None = None

    @property
    def label(self) -> str:
        keys = "" if self.kv_seq_len is None else f" on {self.kv_seq_len}"
        return f"H{self.num_heads} S{self.seq_len}{keys} D{self.head_dim}"

    def case(self, dtype: str) -> Case:
        mask = "none" if self.kind == "views" else self.kind
        sizes = (self.num_heads, self.seq_len, self.head_dim)
        return attention_case(*sizes, dtype, 1, mask, kv_seq_len=self.kv_seq_len)

    def inputs(self, dtype: str) -> AttentionInputs:
        drawn = make_inputs(self.case(dtype))
        assert isinstance(drawn, AttentionInputs)
        return packed_views(drawn) if self.kind == "views" else drawn


LINES = (
    *(Line(*shape, kind) for shape in SHAPES for kind in ("none", "causal")),
    *(
        Line(*shape, kind)
        for shape in SHAPES[:2]
        for kind in ("views", "keep:random", "bias:random")
    ),
    Line(16, 2048, 64, "bias:random"),
    *(Line(8, queries, 64, "none", kv_seq_len=8192) for queries in (5, 16)),
)


def print_costs(console: Console, counting: ModuleType, dtype: str, rounds: int) -> None:
    title = f"{dtype}, ns per 16 x 16 scores, tile product {tile_product_gflops():.0f} GFLOP/s"
    table = Table("shape", "mask", title=title)
    for name in (*STAGES, "rest", "apart", "product", "sdpa"):
        table.add_column(name, justify="right")
    for line in LINES:
        found = costs(counting, line.case(dtype), line.inputs(dtype), rounds)
        table.add_row(line.label, line.kind, *(f"{ns:.1f}" for ns in found))
    console.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as build_folder, torch.no_grad():
        kernels = counting_kernels(build_folder)
        for chosen_dtype in chosen.dtype:
            print_costs(Console(width=170), kernels, chosen_dtype, chosen.rounds)
