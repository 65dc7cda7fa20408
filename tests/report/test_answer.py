"""The first sentences: what to use, how sure, at which price; an open cell hides nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.report.answer import answer, main_sentences
from harness.report.content import Content, content_of
from harness.report.decision import decision_record, regret_table
from harness.rows import Row
from tests.synthetic import Truth, draw_rows, make_case, store_run

CASES = [make_case(n) for n in (128, 512, 2048)]


def drawn(passes: int = 1, **seconds: float) -> list[Row]:
    truth = {name: {c.id: t * c.config.seq_len for c in CASES} for name, t in seconds.items()}
    return draw_rows(CASES, Truth(truth, num_rounds=68, passes=passes))


def shortened(rows: list[Row], lengths: tuple[int, ...], rounds: int) -> list[Row]:
    """Rounds of some cases cut: too few of them bound nothing."""

    def cut(row: Row) -> Row:
        if row.case.config.seq_len not in lengths:
            return row
        samples, shadow = (
            replace(s, times_s=s.times_s[:rounds], orders=s.orders[:rounds])
            for s in (row.samples, row.shadow)
        )
        return replace(row, samples=samples, shadow=shadow)

    return [cut(row) for row in rows]


def stored(tmp_path: Path, rows: list[Row]) -> Content:
    return content_of(store_run(tmp_path, rows))


def main_text(content: Content) -> list[str]:
    return [sentence.text for sentence in main_sentences(content, content.decision)]


def test_a_sure_winner_is_named_with_its_lead(tmp_path: Path) -> None:
    first, _, sure = main_text(stored(tmp_path, drawn(naive=2e-6, quick=1e-6)))
    assert first == (
        "Use quick everywhere: surely the fastest in every case, 2.0x ahead of the next best."
    )
    assert sure == "How sure: one implementation is surely the fastest in all 3 cases."


def test_one_open_cell_is_named_and_hides_nothing_of_the_others(tmp_path: Path) -> None:
    rows = shortened(drawn(naive=2e-6, quick=1e-6, slow=4e-6), (2048,), 4)
    content = stored(tmp_path, rows)
    first, _, sure, left_open = main_text(content)
    assert first == (
        "Use quick everywhere: surely the fastest in every case, 2.0x ahead of the next best "
        "(over the 2 of 3 cases that have an interval)."
    )
    assert "in 2 one implementation is surely the fastest; in 1 the first can't be told" in sure
    assert left_open.startswith("Open: length 2048, 1 of them with too few rounds for an interval.")
    assert "--refine" in left_open
    assert len(content.decision.open_cases) == 1


def test_every_choice_is_priced_over_the_same_decided_cells(tmp_path: Path) -> None:
    rows = shortened(drawn(naive=2e-6, quick=1e-6, slow=4e-6), (2048,), 4)
    content = stored(tmp_path, rows)
    assert {choice.num_cells for choice in content.decision.fixed} == {2}
    table = regret_table(content.decision)
    assert "Without 1 case of too few rounds" in table.note
    record = json.dumps(decision_record(content.decision), allow_nan=False)
    assert json.loads(record)["open"] == list(content.decision.open_cases)


def test_where_every_cell_is_open_the_answer_is_as_measured_and_not_sure(tmp_path: Path) -> None:
    content = stored(tmp_path, shortened(drawn(naive=2e-6, quick=1e-6), (128, 512, 2048), 4))
    first, *_ = main_text(content)
    assert first == (
        "Use quick everywhere for now, the quickest as measured: no case has rounds enough for an "
        "interval, so nothing is sure."
    )
    assert content.decision.open_cases == ()
    assert regret_table(content.decision).lines[0][2].text == "too few rounds"
    json.dumps(decision_record(content.decision), allow_nan=False)


@pytest.mark.parametrize("lengths", [(), (2048,), (128, 512, 2048)])
def test_no_sentence_and_no_cost_shows_a_question_mark(
    lengths: tuple[int, ...], tmp_path: Path
) -> None:
    content = stored(tmp_path, shortened(drawn(naive=2e-6, quick=1e-6), lengths, 4))
    for sentence in answer(content, content.decision):
        assert "?" not in sentence.text
    for line in regret_table(content.decision).lines:
        assert all("?" not in field.text for field in line)


def test_a_tie_is_called_one(tmp_path: Path) -> None:
    first, *_ = main_text(stored(tmp_path, drawn(passes=6, naive=2e-6, one=1e-6, other=1e-6)))
    assert first.startswith(
        ("Use one or other everywhere; they tie", "Use other or one everywhere")
    )
    assert "they tie, equal within 3 %" in first


def test_what_can_not_be_told_from_the_cheapest_is_said(tmp_path: Path) -> None:
    rows = draw_rows(
        CASES,
        Truth({n: {c.id: 1e-3 for c in CASES} for n in ("one", "other")}, noise=0.3, num_rounds=8),
    )
    first, *_ = main_text(stored(tmp_path, rows))
    assert "the cheapest as measured, though" in first
    assert "can't be told from it over all cases together" in first


def test_who_needs_much_less_memory_or_error_is_named_with_the_time_it_takes(
    tmp_path: Path,
) -> None:
    price = {"quick": (2**24, 50.0), "lean": (2**20, 50.0), "exact": (2**24, 2.0)}
    rows = [
        replace(row, peak_alloc_bytes=price[row.implementation][0],
                errors={"o": {"scaled_u": price[row.implementation][1], "bound_share": 0.2}})
        for row in drawn(passes=3, quick=1e-6, lean=1.5e-6, exact=3e-6)
    ]  # fmt: skip
    _, said, *_ = main_text(stored(tmp_path, rows))
    assert said.startswith(
        "quick needs at most 16.0 MiB of extra memory and is off by at most 50 unit roundoffs "
        "(20 % of what rounding allows). lean needs 1.00 MiB, for 50 % ["
    )
    assert "exact stays within 2.0, for 3.0" in said
    assert said.endswith("the time.")


def test_the_answer_says_what_it_holds_for(content: Content) -> None:
    texts = [sentence.text for sentence in answer(content, content.decision)]
    (last,) = [text for text in texts if text.startswith("All this holds for")]
    assert "hidden 768 or 2048, heads 8 or 16, length 128 to 2048" in last
    assert "float32, mask none" in last
    assert last.endswith("not other dtypes, masks, modes or devices.")
