"""Modes that don't add up, and first calls that have to pay for themselves, are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.report.content import Content, content_of
from harness.report.markdown import markdown_of
from harness.report.trades import front_table, heads_table, modes_table, start_table
from tests.synthetic import Truth, draw_rows, make_case, store_run

MODES = ("forward_train", "backward", "forward_backward")


def test_modes_that_do_not_add_up_are_marked(tmp_path: Path) -> None:
    cases = [make_case(n, mode=mode) for n in (64, 128) for mode in MODES]
    seconds = {
        "naive": {c.id: {"forward_backward": 3.0}.get(c.mode, 1.5) for c in cases},
        "odd": {c.id: {"forward_backward": 2.0}.get(c.mode, 1.5) for c in cases},
    }
    run = store_run(tmp_path, draw_rows(cases, Truth(seconds, noise=0.001, passes=5)))
    content = content_of(run)
    table = modes_table(content)
    assert table is not None
    marks = {(line[0].text, line[4].mark) for line in table.lines}
    assert ("odd", "bad") in marks
    assert ("naive", "") in marks or ("naive", "bad") in marks
    assert "Do the modes add up?" in markdown_of(content)
    assert table.lines[0][1].text.startswith("length ")


def test_a_slow_first_call_says_when_it_has_paid_for_itself(tmp_path: Path) -> None:
    case = make_case(64)
    rows = draw_rows([case], Truth({"naive": {case.id: 2e-3}, "compiled": {case.id: 1e-3}}))
    slow = [replace(r, first_call_s=10.0) if r.implementation == "compiled" else r for r in rows]
    table = start_table(content_of(store_run(tmp_path, slow)))
    assert table is not None
    ((_, name, first, _, calls),) = table.lines
    assert (name.text, first.text) == ("compiled", "10.0 s")
    assert 8_000 < int(calls.text.replace(",", "")) < 13_000


def test_runs_without_such_things_have_no_such_tables(content: Content) -> None:
    assert modes_table(content) is None
    table = start_table(content)
    assert table is not None
    assert table.lines == ()


def test_what_is_never_dominated_is_marked(content: Content) -> None:
    marks = {line[0].text: line[0].mark for line in front_table(content).lines}
    assert marks["chunked"] == ""
    assert "best" in (marks["sdpa"], marks["sdpa_flash"])


def test_more_heads_are_compared_at_the_same_hidden_size(content: Content) -> None:
    table = heads_table(content)
    assert table is not None
    by_name = {line[0].text: line for line in table.lines}
    assert by_name["naive"][1].text == "16 instead of 8"
    assert by_name["naive"][5].text == "10"
