"""What is seen while a sweep runs, on a terminal and elsewhere."""

import io
import re

import pytest
from rich.console import Console

from harness.cli.plan_text import duration, headline
from harness.cli.progress import watching
from harness.rows import Status
from tests.composing import planned
from tests.synthetic import make_row


@pytest.fixture(scope="module")
def plan():
    return planned(
        "hidden_size=64", "num_heads=2", "seq_len=8,16", "implementation=naive", "measure.passes=3"
    )


def _console(*, terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, _environ={})


def _seen(console):
    """The text without colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_elsewhere_every_case_is_a_line_with_its_place_and_the_time_left(plan):
    console = _console(terminal=False)
    with watching(plan, console) as observer:
        observer.on_message("starting the workers")
        observer.on_case_start(plan.cases[0], 0, 0, 2, 120.0)
    assert _seen(console).splitlines() == [
        "starting the workers",
        f"[1/2] {plan.cases[0].id}, 2 min left",
    ]


def test_before_the_first_case_is_over_the_plans_estimate_is_shown(plan):
    console = _console(terminal=False)
    with watching(plan, console) as observer:
        observer.on_case_start(plan.cases[0], 0, 1, 2, None)
    assert f"{duration(plan.eta_s / 2)} left" in _seen(console)


def test_quick_cases_do_not_flood_a_log(plan):
    console = _console(terminal=False)
    with watching(plan, console) as observer:
        for done in range(100):
            observer.on_case_start(plan.cases[0], 0, done, 100, 1.0)
    assert len(_seen(console).splitlines()) < 10


@pytest.mark.parametrize("terminal", [True, False])
def test_a_problem_is_told_once_however_many_passes_have_it(plan, terminal):
    console = _console(terminal=terminal)
    row = make_row(plan.cases[0], "bad", Status.ERROR, reasons=("RuntimeError: [no] reason",))
    with watching(plan, console) as observer:
        for _ in range(3):
            observer.on_row(row)
        observer.on_row(make_row(plan.cases[0], "other", Status.UNSUPPORTED, reasons=("head",)))
    told = [line for line in _seen(console).splitlines() if "RuntimeError: [no] reason" in line]
    assert len(told) == 1
    assert f"error: bad on {plan.cases[0].id}" in told[0]
    assert "head" not in _seen(console)


def test_on_a_terminal_a_bar_shows_the_case_and_the_time_left(plan):
    console = _console(terminal=True)
    with watching(plan, console) as observer:
        observer.on_case_start(plan.cases[1], 0, 1, 2, 30.0)
    assert "1/2" in _seen(console)
    assert "30 s left" in _seen(console)
    assert plan.cases[1].id in _seen(console)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (45, "45 s"), (120, "2 min"), (3 * 3600, "3.0 h"), (3 * 86400, "3 days")],
)
def test_a_duration_is_said_as_a_person_would(seconds, said):
    assert duration(seconds) == said


def test_the_headline_counts_everything_once(plan):
    assert headline(plan).startswith("2 cases x 1 implementation x 3 passes = 6 rows, about ")
