"""A short summary in Markdown, for the page of a job in continuous integration."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report.answer import answer
from harness.report.content import Content, header_lines
from harness.report.gaps import failure_table
from harness.report.markdown import escaped, markdown_tables
from harness.report.tables import choice_table


def summary_of(content: Content) -> str:
    """Header, answer and the table of choices; everything else folds away."""
    return "\n".join([*_lines(content), ""])


def _lines(content: Content) -> Iterator[str]:
    decision = content.decision
    first, *others = answer(content, decision)
    yield f"### mha-bench: {escaped(content.run.name)}"
    yield ""
    yield f"**{escaped(first.text)}**"
    yield ""
    for line in header_lines(content):
        yield f"- {escaped(line)}"
    yield ""
    yield "<details><summary>Details</summary>"
    yield ""
    for sentence in others:
        yield f"- {escaped(sentence.text)}"
    yield ""
    failures = failure_table(content)
    yield from markdown_tables([choice_table(content), *([failures] if failures else [])])
    yield "</details>"
