"""A report in Markdown: for a pull request, a wiki, a summary in continuous integration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.report.answer import answer
from harness.report.comparisons import comparison_table
from harness.report.content import Content, header_lines
from harness.report.exactness import exactness_table
from harness.report.gaps import failure_table, left_out_table
from harness.report.matrices import error_table, memory_table, time_table
from harness.report.tables import Field, Table, choice_table, fixed_axes
from harness.report.trades import modes_table, start_table


def markdown_of(content: Content) -> str:
    """The whole report."""
    decision = content.decision
    first, *others = answer(content, decision)
    lines = [f"# mha-bench: {escaped(content.run.name)}", "", f"**{escaped(first.text)}**", ""]
    lines += [f"- {escaped(sentence.text)}" for sentence in others]
    lines += ["", "## What was measured", ""]
    lines += [f"- {escaped(line)}" for line in header_lines(content)]
    lines += [f"- all cases: {escaped(fixed_axes(content))}", ""]
    return "\n".join([*lines, *markdown_tables(all_tables(content))])


def markdown_tables(tables: Iterable[Table]) -> Iterator[str]:
    """Lines of Markdown for tables, each under a heading of its own."""
    for table in tables:
        yield f"## {table.title}"
        yield ""
        if table.note:
            yield escaped(table.note)
            yield ""
        yield _line(table.columns)
        yield _line(
            "---" if position < table.num_labels else "---:"
            for position in range(len(table.columns))
        )
        for fields in table.lines:
            yield _line(map(_text, fields))
        yield ""


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _text(field: Field) -> str:
    text = escaped(field.text)
    return f"**{text}**" if field.mark in ("best", "bad") and text else text


def escaped(text: str) -> str:
    """A bar would end the cell, a star start emphasis, an angle bracket a tag."""
    flat = " ".join(text.split())
    for character in "\\|*_<":
        flat = flat.replace(character, f"\\{character}")
    return flat


def all_tables(content: Content) -> list[Table]:
    """Every table of a full report, in reading order."""
    optional = (
        start_table(content),
        modes_table(content),
        failure_table(content),
        left_out_table(content),
    )
    return [
        choice_table(content),
        time_table(content),
        comparison_table(content),
        memory_table(content),
        error_table(content),
        exactness_table(content),
        *(table for table in optional if table is not None and table.lines),
    ]
