"""What the fused CPU kernels reach beside ``F.scaled_dot_product_attention``, and what they must.

Every table, or some of them, on an otherwise idle machine; the last table sums up::

    python -m tests.benchmarks.test_fused
    python -m tests.benchmarks.test_fused --tables forward layer --threads 1 --dtype bfloat16
    python -m tests.benchmarks.test_fused --quick                       # about a minute
    python -m tests.benchmarks.test_fused --json FILE                   # keeps every round
    python -m tests.benchmarks.test_fused --from FILE FILE              # prints kept ones

Calls of a cell are timed in rounds of random order by the harness's own engine. Beside each figure
stands the calibration: the speed of a bfloat16 product, which loads tiles; rounds in which that was
slow are kept apart. ``tests/benchmarks/fused`` has the tables and their targets.

As pytest-benchmark cases: ``pytest tests/benchmarks/test_fused.py --benchmark-only``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from rich import box
from rich.console import Console

from harness.environment import describe
from harness.report.content import machine_line
from implementations.fused.native import library
from tests.benchmarks.fused.cells import best_calibrations
from tests.benchmarks.fused.engine import Engine
from tests.benchmarks.fused.errors import error_verdicts
from tests.benchmarks.fused.plans import Choice, Recipe
from tests.benchmarks.fused.run import DEFAULT_NAMES, NAMES, TABLES, Results, measure_table
from tests.benchmarks.fused.show import all_verdicts, show_errors, show_table, show_verdicts

_BUDGET_S, _QUICK_BUDGET_S = 2.0, 0.1
_WIDTH = 250  # columns where no terminal says how many there are


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = _parser().parse_args(arguments)
    width = _WIDTH if chosen.markdown or not sys.stdout.isatty() else None
    console = Console(width=width)
    results = Results()
    for path in chosen.stored:
        results.add(Results.load(path))
    if not chosen.stored:
        _measure(chosen, results)
    console.print(*results.machines, sep="\n", highlight=False)
    best = best_calibrations(results.cells)
    for table in () if chosen.markdown else TABLES.values():
        show_table(console, table, [c for c in results.cells if c.table == table.name], best)
    if results.errors and not chosen.markdown:
        show_errors(console, results.errors)
    verdicts = all_verdicts(tuple(TABLES.values()), results.cells, best)
    style = box.MARKDOWN if chosen.markdown else box.SIMPLE_HEAD
    show_verdicts(console, [*verdicts, *error_verdicts(results.errors)], best, style)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tables", nargs="+", default=DEFAULT_NAMES, choices=[*NAMES], metavar="NAME",
        help=f"of {', '.join(NAMES)}; all by default")  # fmt: skip
    add("--threads", type=int, nargs="+", help="1 and 2 by default, with --quick 1")
    add("--dtype", nargs="+", default=Choice.dtypes, choices=Choice.dtypes)
    add("--precision", nargs="+", default=Choice.precisions, choices=Choice.precisions)
    add("--cells", nargs="+", default=[], help="only cells whose label has one of these in it")
    add("--quick", action="store_true", help="short cells and few rounds")
    add("--budget", type=float, help="seconds of rounds for each cell, short ones take less")
    add("--json", type=Path, help="file that keeps every round")
    add("--markdown", action="store_true", help="print what is reached only, in Markdown")
    add("--from", dest="stored", type=Path, nargs="+", default=[], help="files kept by --json")
    return parser


def _measure(chosen: argparse.Namespace, results: Results) -> None:
    threads = chosen.threads or ([1] if chosen.quick else Choice.threads)
    choice = Choice(chosen.dtype, chosen.precision, threads, chosen.quick, chosen.cells)
    engine = Engine(chosen.budget or (_QUICK_BUDGET_S if chosen.quick else _BUDGET_S))
    results.machines.append(machine_line(describe()))
    for name in (table for each in chosen.tables for table in NAMES[each]):
        for found in measure_table(name, choice, engine, _say):
            results.add(found)
            if chosen.json:
                results.save(chosen.json)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


QUICK = Choice(threads=[1], is_quick=True)
needs_kernels = pytest.mark.skipif(
    library() is None, reason="the fused kernels were not built: no C++ compiler"
)


def quick_recipes() -> Iterator[Recipe]:
    """The cells of the quick tables that this process can time."""
    for table in TABLES.values():
        if table.is_at_home():
            yield from table.recipes(QUICK)


@pytest.fixture
def torch_state() -> Iterator[None]:
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_grad_enabled(grad)


def _id(recipe: Recipe) -> str:
    return f"{recipe.place.table} {recipe.place.group} {recipe.place.label}"


@needs_kernels
@pytest.mark.usefixtures("torch_state")
@pytest.mark.parametrize("recipe", list(quick_recipes()), ids=_id)
def test_all_calls_of_a_cell(benchmark, recipe: Recipe) -> None:  # type: ignore[no-untyped-def]
    calls = [runs[0] for runs in recipe.make().values()]
    results = benchmark.pedantic(lambda: [call() for call in calls], rounds=5, warmup_rounds=1)
    outputs = [each[0] if isinstance(each, tuple) else each for each in results]
    assert all(output.isfinite().all() for output in outputs)


if __name__ == "__main__":
    main()
