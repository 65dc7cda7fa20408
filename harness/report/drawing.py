"""Tables on a terminal of any width: figures and words stay whole; what is too wide is stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from harness.report.numbers import ABSENT
from harness.report.tables import Field, Table

_STYLES = {"best": "bold green", "bad": "red", "quiet": "dim", "": ""}
_GAPS = (3, 2)  # blanks between two columns, the wider ones where there is room
_OPTIONAL = ("next best", "extra memory", "error", "why", "time", "old", "new")


def print_table(table: Table, console: Console) -> None:
    """Draw a table; what is too wide loses less important columns, or comes in several blocks."""
    for candidate in _narrower(table):
        for gap in _GAPS:
            if _fits(candidate, console, gap):
                _print_drawn([candidate], console, gap)
                return
    blocks = _blocks(table, console)
    if blocks:
        _print_drawn(blocks, console, _GAPS[-1])
    else:
        _print_stacked(table, console)


def _print_drawn(tables: Sequence[Table], console: Console, gap: int) -> None:
    for table in tables:
        console.print()
        console.print(Text(table.title, style="bold"))
        console.print(_draw(table, gap, console.width))
    if tables[-1].note:
        console.print(Text(tables[-1].note, style="dim"))


def _narrower(table: Table) -> Iterator[Table]:
    """The table, then without columns that hold nothing, then without one optional column more."""
    yield table
    table = _without_empty(table)
    yield table
    for name in _OPTIONAL:
        if name in table.columns:
            at = table.columns.index(name)
            table = _selected(table, [i for i in range(len(table.columns)) if i != at])
            yield table


def _without_empty(table: Table) -> Table:
    kept = [
        i
        for i in range(len(table.columns))
        if i < table.num_labels or any(line[i].text not in ("", ABSENT) for line in table.lines)
    ]
    return _selected(table, kept)


def _selected(table: Table, positions: Sequence[int]) -> Table:
    columns = tuple(table.columns[i] for i in positions)
    lines = tuple(tuple(line[i] for i in positions) for line in table.lines)
    return replace(table, columns=columns, lines=lines)


def _fits(table: Table, console: Console, gap: int) -> bool:
    """Whether no figure would be broken, and no word of a table of words."""
    if _is_words(table):
        return sum(_longest_words(table)) <= _room(table, console.width, gap)
    unbounded = console.options.update(max_width=10_000)  # else the answer is cut to the width
    drawn = _draw(table, gap, console.width)
    return console.measure(drawn, options=unbounded).maximum <= console.width


def _blocks(table: Table, console: Console) -> list[Table]:
    """The table cut between columns, labels repeated; empty where one column alone is too wide."""
    labels, blocks, start = list(range(table.num_labels)), [], table.num_labels
    while start < len(table.columns):
        end = len(table.columns)
        while end > start and not _fits(
            _selected(table, [*labels, *range(start, end)]), console, _GAPS[-1]
        ):
            end -= 1
        if end == start:
            return []
        blocks.append(_selected(table, [*labels, *range(start, end)]))
        start = end
    return blocks


def _draw(table: Table, gap: int, width: int) -> RichTable:
    """Names may hold square brackets, ``block[size=16]``: no text here is markup."""
    drawn = RichTable(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, gap - 2))
    is_text = _is_words(table)
    widths = _word_widths(table, _room(table, width, gap)) if is_text else None
    for position, name in enumerate(table.columns):
        right = position >= table.num_labels or (not is_text and _is_number(table, position))
        drawn.add_column(
            Text(name),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=not is_text,
            width=widths[position] if widths else None,
        )
    for line in table.lines:
        drawn.add_row(*(_text(field) for field in line))
    return drawn


def _is_words(table: Table) -> bool:
    """A table of words only: they may wrap, between words."""
    return table.num_labels == len(table.columns)


def _room(table: Table, width: int, gap: int) -> int:
    """What is left of the width for the columns themselves."""
    return width - gap * (len(table.columns) - 1) - 2


def _word_widths(table: Table, room: int) -> list[int]:
    """Each column as wide as its longest word; what is left goes where texts are longer."""
    least = _longest_words(table)
    most = [max(map(len, texts)) for texts in _texts_of_columns(table)]
    spare, wanted = max(0, room - sum(least)), sum(most) - sum(least)
    share = min(1.0, spare / wanted) if wanted else 0.0
    return [low + int(share * (high - low)) for low, high in zip(least, most, strict=True)]


def _longest_words(table: Table) -> list[int]:
    return [
        max((len(word) for text in texts for word in text.split()), default=1)
        for texts in _texts_of_columns(table)
    ]


def _texts_of_columns(table: Table) -> list[list[str]]:
    return [
        [name, *(line[position].text for line in table.lines)]
        for position, name in enumerate(table.columns)
    ]


def _is_number(table: Table, position: int) -> bool:
    return all(line[position].text.replace(".", "").isdigit() for line in table.lines)


def _text(field: Field) -> Text:
    return Text(field.text, style=_STYLES[field.mark])


def _print_stacked(table: Table, console: Console) -> None:
    """One paragraph a line, for terminals too narrow for columns."""
    console.print()
    console.print(Text(table.title, style="bold"))
    num_labels = 1 if _is_words(table) else table.num_labels
    for line in table.lines:
        fields = list(zip(table.columns, line, strict=True))
        labels = ", ".join(f"{name} {field.text}" for name, field in fields[:num_labels])
        console.print(Text(labels, style="underline"))
        for name, field in fields[num_labels:]:
            if field.text:
                console.print(Text.assemble(f"  {name}: ", _text(field)))
    if table.note:
        console.print(Text(table.note, style="dim"))
