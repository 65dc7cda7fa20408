"""What a terminal too narrow for a table leaves out, and in which order."""

from __future__ import annotations

import io

from rich.console import Console

from harness.report.drawing import print_table
from harness.report.tables import Field, Table

COLUMNS = ("case", "implementation", "old", "new", "new / old", "verdict", "findings")


def drawn(width: int, findings: str = "-") -> str:
    line = ("b1-h256x4-s512-float32-cpu1", "sdpa", "2.40 ms", "2.38 ms", "1.00x [0.93, 1.07]",
            "inconclusive", findings)  # fmt: skip
    table = Table("New against old", COLUMNS, (tuple(map(Field, line)),), num_labels=2)
    console = Console(file=io.StringIO(), width=width)
    print_table(table, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_column_without_figures_goes_first_then_plain_times() -> None:
    assert "findings" in drawn(130)
    assert "findings" not in drawn(100)
    assert "2.38 ms" in drawn(100)
    narrow = drawn(80)
    assert narrow.count("New against old") == 1
    assert "1.00x [0.93, 1.07]" in narrow
    assert "inconclusive" in narrow
    assert "2.40 ms" not in narrow


def test_what_was_found_is_never_left_out() -> None:
    text = drawn(80, "memory 2.0x")
    assert "memory 2.0x" in text
    assert "inconclusive" in text


def test_square_brackets_are_no_markup() -> None:
    title, name = "Against block[size=16]", "block[bold]"
    table = Table(title, ("[dim]", name), ((Field("a[b]"), Field("[/x]")),), num_labels=1)
    console = Console(file=io.StringIO(), width=80)
    print_table(table, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in (title, "[dim]", name, "a[b]", "[/x]"):
        assert expected in text
