"""`mha-bench decide`: constraints and a workload in, what to use out; measures only to refine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.analysis.cells import varying_axes
from harness.analysis.decide import Constraints, Decision
from harness.analysis.refine import Refinement, refinement
from harness.analysis.workload import Demand, read_requests, read_workload
from harness.cli import recorded
from harness.columns import AXES
from harness.errors import InvalidValueError
from harness.planning.quantities import read_bytes, read_seconds
from harness.report import render_decision, render_prediction
from harness.report.decision import decision_record
from harness.report.numbers import count

_MORE_PASSES = 3


@dataclass(frozen=True)
class Question:
    """What was asked, as typed.

    Args:
        words: ``AXIS=VALUE`` words: the cells that count, or the case to predict.
        workload: ``seq_len=128:3,seq_len=2048:1``, or the path of a CSV of requests.
    """

    words: tuple[str, ...] = ()
    max_memory: str | None = None
    max_latency: str | None = None
    max_error: float | None = None
    must_support: tuple[str, ...] = ()
    workload: str | None = None
    margin: float | None = None


def decide(run: Path, question: Question, refine: bool, as_json: bool) -> None:
    """Print the decision; with ``refine``, measure where it is not sharp and decide again."""
    decision = _decide(run, question, as_json)
    if refine and _measure(run, refinement(decision), decision):
        _decide(run, question, as_json)


def _decide(run: Path, question: Question, as_json: bool) -> Decision:
    decision = render_decision(
        run,
        Console(stderr=as_json),
        constraints=_constraints(question),
        workload=_workload(question.workload),
        margin=question.margin,
    )
    if as_json:
        print(json.dumps(decision_record(decision), indent=1))
    return decision


def predict(run: Path, words: Sequence[str]) -> None:
    """Print what every implementation would take on the case that the words name."""
    if not words:
        raise InvalidValueError("--predict", "AXIS=VALUE of the case", "nothing", AXES)
    render_prediction(
        run, Console(), {axis: number_or_text(v) for axis, v in read_axes(words).items()}
    )


def read_axes(words: Sequence[str]) -> dict[str, str]:
    """``AXIS=VALUE`` words as a mapping.

    Raises:
        InvalidValueError: a word has no ``=``, or names no axis.
    """
    axes = {}
    for word in words:
        axis, sign, value = word.partition("=")
        if not sign or axis not in AXES:
            raise InvalidValueError("axis", "AXIS=VALUE", word, AXES)
        axes[axis] = value
    return axes


def number_or_text(text: str) -> object:
    """A word of the command line as what it looks like."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _constraints(question: Question) -> Constraints:
    return Constraints(
        max_memory_bytes=read_bytes("max-memory", question.max_memory),
        max_error_u=question.max_error,
        max_latency_s=read_seconds("max-latency", question.max_latency),
        must_support=question.must_support,
        axes=read_axes(question.words),
    )


def _workload(text: str | None) -> list[Demand] | None:
    if text is None:
        return None
    return read_workload(text) if "=" in text else read_requests(Path(text))


def _measure(run: Path, wanted: Refinement, decision: Decision) -> bool:
    """Add the refinement's points to the run; False where there is nothing to add."""
    console = Console(stderr=True)
    if wanted.is_empty:
        console.print("nothing to refine: every crossover is sharp and every case resolved")
        return False
    axes = varying_axes(decision.cells)
    if wanted.new:
        console.print(f"measuring {count(len(wanted.new), 'new point')}")
        _sweep(run, axes, wanted.new, passes=None)
    if wanted.again:
        console.print(f"measuring {count(len(wanted.again), 'undecided point')} again")
        _sweep(run, axes, wanted.again, passes=_passes(run) + _MORE_PASSES)
    return True


def _passes(run: Path) -> int:
    from harness.store import load

    return int(load(run)["pass_index"].max()) + 1


def _sweep(
    run: Path, axes: Sequence[str], points: Sequence[Mapping[str, Any]], passes: int | None
) -> None:
    """The run's own command, on these points only, into the same run."""
    from harness.cli import hydra_app

    replaced = {*axes, "points", "model", "measure.passes", "run", "name"}
    kept = [word for word in recorded.recall(run) if recorded.key(word) not in replaced]
    listed = ",".join(
        "{" + ",".join(f"{axis}:{value}" for axis, value in point.items()) + "}" for point in points
    )
    more = [] if passes is None else [f"measure.passes={passes}"]
    hydra_app.run([*kept, *more, f"points=[{listed}]", f"run={run}"])
