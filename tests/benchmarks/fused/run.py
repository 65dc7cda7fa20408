"""Measures the chosen tables, in a process of their own those that need its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.benchmarks.fused import errors
from tests.benchmarks.fused.attention_tables import (
    AVX2_ALL,
    AVX2_ATEN,
    FORWARD,
    STRIDED,
    TRAINING,
)
from tests.benchmarks.fused.cells import Cell
from tests.benchmarks.fused.decode_tables import DECODE
from tests.benchmarks.fused.engine import Engine
from tests.benchmarks.fused.errors import ErrorLine, error_lines
from tests.benchmarks.fused.layer_tables import LAYER
from tests.benchmarks.fused.mask_tables import MASKS, WINDOW
from tests.benchmarks.fused.plans import Choice, Table
from tests.benchmarks.fused.tiny_tables import TINY

TABLES = {
    table.name: table
    for table in (
        FORWARD, STRIDED, DECODE, MASKS, WINDOW, TRAINING, LAYER, TINY, AVX2_ATEN, AVX2_ALL
    )
}  # fmt: skip
# What --tables takes, and the tables that it stands for.
NAMES = {
    **{name: (name,) for name in TABLES},
    "avx2": (AVX2_ATEN.name, AVX2_ALL.name),
    errors.NAME: (errors.NAME,),
}
DEFAULT_NAMES = (*(name for name in TABLES if not TABLES[name].environment), "avx2", errors.NAME)


@dataclass
class Results:
    """What was measured, and on which machines."""

    cells: list[Cell] = field(default_factory=list)
    errors: list[ErrorLine] = field(default_factory=list)
    machines: list[str] = field(default_factory=list)

    def add(self, other: Results) -> None:
        self.cells += other.cells
        self.errors += other.errors
        self.machines += (x for x in other.machines if x not in self.machines)

    def save(self, path: Path) -> None:
        """As JSON; ``load`` is its inverse."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Results:
        stored = json.loads(path.read_text())
        cells = [Cell(**cell) for cell in stored["cells"]]
        lines = [ErrorLine(**line) for line in stored["errors"]]
        return cls(cells, lines, stored["machines"])


def measure_table(
    name: str, choice: Choice, engine: Engine, progress: Callable[[str], None]
) -> Iterator[Results]:
    """The cells of one table one by one, or the lines of errors."""
    if name == errors.NAME:
        progress(errors.TITLE)
        yield from (Results(errors=[line]) for line in error_lines(choice))
        return
    table = TABLES[name]
    if not table.is_at_home():
        progress(table.title)
        yield _in_a_process_of_its_own(table, choice, engine.budget_s)
        return
    for recipe in table.recipes(choice):
        place = recipe.place
        if choice.has(place.label):
            progress(f"{place.table} {place.group} {place.label} threads={place.threads}")
            yield Results([engine.measure(place, recipe.make(), recipe.scale)])


def _in_a_process_of_its_own(table: Table, choice: Choice, budget_s: float) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cells.json"
        options: Sequence[str] = (
            *("--tables", table.name, "--threads", *map(str, choice.threads)),
            *("--budget", str(budget_s), "--json", str(path)),
            *(["--quick"] if choice.is_quick else []),
            *(["--cells", *choice.labels] if choice.labels else []),
        )
        subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.test_fused", *options],
            env=os.environ | table.environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return Results.load(path)
