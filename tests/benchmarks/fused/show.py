"""The tables as they are printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as Grid

from tests.benchmarks.fused.cells import QUIET_SHARE, Cell, Estimate
from tests.benchmarks.fused.errors import ErrorLine
from tests.benchmarks.fused.plans import Aim, Table
from tests.benchmarks.fused.verdicts import Line, Verdict, lines_of, reaches, verdicts_of

_NOTE = """\
A figure is a ratio of times in the same round, the other's by ours, unless it says what it is:
medians over rounds with 95 % intervals, quiet and slow rounds apart. Tile loads: GFLOP/s of a
bfloat16 product, timed before and after each round; a round is slow where that is below {share:.0%}
of the best that was seen ({best})."""


def show_table(
    console: Console, table: Table, cells: Sequence[Cell], best: dict[int, float]
) -> None:
    """Every cell of a table, by group and aim."""
    for group in dict.fromkeys(cell.group for cell in cells):
        own = [cell for cell in cells if cell.group == group]
        for aim in table.aims(group):
            lines = lines_of(own, aim, best)
            if lines:
                console.print(_grid(f"{table.title}, {group}: {aim.name}", aim, lines))


def _grid(title: str, aim: Aim, lines: Sequence[Line]) -> Grid:
    grid = Grid(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    columns = ("threads", aim.base, aim.own, "figure", "target", "reached", "tile loads")
    grid.add_column("cell", no_wrap=True)
    for name in (*columns, "in the slow state", "its tile loads", "rounds"):
        grid.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        rounds = (0 if x is None else x.rounds for x in (line.quiet, line.slow))
        grid.add_row(
            *(line.cell.label, str(line.cell.threads)),
            *(_seconds(line.base_s), _seconds(line.own_s)),
            *(_figure(line.quiet), _target(aim.least)),
            "" if line.quiet is None else reaches(line.quiet, aim.least),
            *(_tile_loads(line.quiet), _figure(line.slow), _tile_loads(line.slow)),
            "{} + {}".format(*rounds),
        )
    return grid


def all_verdicts(
    tables: Sequence[Table], cells: Sequence[Cell], best: dict[int, float]
) -> Iterator[Verdict]:
    """Of every table that was measured."""
    for table in tables:
        of_table = [cell for cell in cells if cell.table == table.name]
        for group in dict.fromkeys(cell.group for cell in of_table):
            own = [cell for cell in of_table if cell.group == group]
            for aim in table.aims(group):
                lines = lines_of(own, aim, best)
                if lines:
                    yield from verdicts_of(table, group, aim, lines)


def show_errors(console: Console, lines: Sequence[ErrorLine]) -> None:
    """Every line of errors."""
    grid = Grid(title="Error against float64, RMS", title_justify="left", box=box.SIMPLE_HEAD)
    grid.add_column("case", no_wrap=True)
    for name in ("dtype", "implementation", "its error", "sdpa's", "ratio", "share of the bound"):
        grid.add_column(name, justify="right", no_wrap=True)
    for x in lines:
        ratio = f"{x.rms / x.rms_of_sdpa:.2f}"
        errors = (f"{x.rms:.2e}", f"{x.rms_of_sdpa:.2e}", ratio, f"{x.bound_share:.3f}")
        grid.add_row(x.label, x.dtype, x.implementation, *errors)
    console.print(grid)


def show_verdicts(
    console: Console, verdicts: Sequence[Verdict], best: dict[int, float], style: box.Box
) -> None:
    """One line for each figure that has a target, or that is a mean."""
    grid = Grid(title="What is reached", title_justify="left", box=style)
    for name in ("table", "group", "figure", "", "cell"):
        grid.add_column(name, no_wrap=style is box.MARKDOWN)
    for name in ("found", "target", "reached", "tile loads", "cells", "slow state"):
        grid.add_column(name, justify="right", no_wrap=True)
    for x in verdicts:
        grid.add_row(
            *(x.table, x.group, x.figure, x.statistic, x.where, _figure(x.found)),
            *(_target(x.target, x.is_limit), x.reached, _tile_loads(x.found)),
            *(f"{x.quiet_cells} of {x.cells}" if x.cells else "", _figure(x.slow)),
        )
    console.print(grid)
    seen = ", ".join(f"{b / 1e9:.0f} with threads={t}" for t, b in sorted(best.items()))
    if seen:
        console.print(_NOTE.format(best=seen, share=QUIET_SHARE), highlight=False)


def _figure(found: Estimate | None) -> str:
    if found is None:
        return "-"
    if found.low == found.high:
        return f"{found.value:.2f}" if found.value >= 0.01 else f"{found.value:.2e}"
    return str(found).replace("[", "\\[")


def _target(target: float | None, is_limit: bool = False) -> str:
    if target is None:
        return ""
    size = f"{target:.2f}" if target >= 0.01 else f"{target:.1e}"
    return f"{'<=' if is_limit else '>='} {size}"


def _tile_loads(found: Estimate | None) -> str:
    return "" if found is None or not found.calibration else f"{found.calibration / 1e9:.0f}"


def _seconds(time_s: float) -> str:
    if time_s < 1e-3:
        return f"{time_s * 1e6:.1f} us"
    return f"{time_s * 1e3:.3g} ms" if time_s < 1 else f"{time_s:.2f} s"
