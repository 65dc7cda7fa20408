"""A decision and predictions as sentences and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.analysis.decide import Decision
from harness.analysis.predict import Prediction
from harness.report import numbers
from harness.report.answer import answer
from harness.report.content import Content
from harness.report.phrases import (
    Sentence,
    crossover_range,
    line_text,
    readable_policy,
    regret_range,
)
from harness.report.tables import AXIS_LABELS, Field, Table, axis_text, best_text
from harness.report.trades import heads_table


def decision_sentences(content: Content, decision: Decision) -> list[Sentence]:
    """The answer under constraints: as in the report, then what the constraints took out."""
    constrained = [
        Sentence(
            f"Left out by the constraints: {e.implementation} in "
            f"{numbers.count(e.num_cells, 'case')} ({e.reason})."
        )
        for e in decision.exclusions
        if e.reason not in ("unsupported",)
    ]
    return [*answer(content, decision), *constrained]


def decision_tables(content: Content, decision: Decision) -> Iterator[Table]:
    """Costs of each choice, flips, what more heads cost, and the best set of every case."""
    yield regret_table(decision)
    if decision.crossovers:
        yield crossover_table(decision)
    if heads := heads_table(content):
        yield heads
    yield _case_table(content, decision)


def regret_table(decision: Decision) -> Table:
    """What each fixed choice and the best two-way rule cost."""
    policies = [*decision.fixed, *([decision.rule] if decision.rule else [])]
    lines = [
        (
            Field(readable_policy(r.policy), "best" if r.policy in decision.best else ""),
            Field(numbers.percent(r.regret)),
            Field(regret_range(r)),
            Field(str(r.num_cells)),
        )
        for r in policies
    ]
    note = "Time lost against taking the fastest of each case, over the cases that a choice covers."
    if decision.open_cases:
        note += f" Without {numbers.count(len(decision.open_cases), 'case')} of too few rounds."
    columns = ("choice", "time lost", "95 % interval", "cases")
    return Table("What each choice costs", columns, tuple(lines), note, num_labels=1)


def crossover_table(decision: Decision) -> Table:
    """Where the order of two implementations flips."""
    lines = [
        (
            Field(line_text(c.fixed) or "all"),
            Field(c.below),
            Field(f"{AXIS_LABELS.get(c.axis, c.axis)} {c.estimate:.0f} {crossover_range(c)}"),
            Field(c.above),
        )
        for c in decision.crossovers
    ]
    note = (
        "Estimated between measured lengths; in brackets every length at which the two may be "
        "equally fast. An end without a number lies beyond what was measured."
    )
    columns = ("where", "faster below", "crossover", "faster above")
    return Table("Crossovers", columns, tuple(lines), note, num_labels=4)


def _case_table(content: Content, decision: Decision) -> Table:
    columns = (*(AXIS_LABELS.get(axis, axis) for axis in content.axes), "use", "weight")
    lines = [
        (
            *(Field(axis_text(case[axis])) for axis in content.axes),
            Field(best_text(content, case), "" if case["state"] == "none" else "best"),
            Field(numbers.percent(case["weight"])),
        )
        for case in decision.cells.to_dict("records")
    ]
    return Table("Best of each case", columns, tuple(lines), num_labels=len(content.axes) + 1)


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """Predicted seconds with their interval, the law's own record, and refusals with the reason."""
    ranked = sorted(predictions, key=lambda p: (p.seconds is None, p.seconds or 0.0))
    columns = ("implementation", "time", "95 % interval", "error when held out", "cells", "remark")
    note = (
        "From cost laws fitted to this run, not measured. Held out: each cell predicted from the "
        "others; the median error."
    )
    lines = tuple(_prediction_line(prediction) for prediction in ranked)
    case = predictions[0].case.id if predictions else "nothing"
    return Table(f"Predicted for {case}", columns, lines, note, num_labels=1)


def _prediction_line(p: Prediction) -> tuple[Field, ...]:
    if p.seconds is None or p.held_out_error is None:
        absent = Field(numbers.ABSENT, "quiet")
        return (
            Field(p.implementation, "quiet"), Field("no prediction", "bad"), absent, absent,
            Field(str(p.num_cells)), Field(p.why),
        )  # fmt: skip
    why = f"extrapolated: {'; '.join(p.extrapolated)}" if p.extrapolated else ""
    return (
        Field(p.implementation),
        Field(numbers.seconds(p.seconds)),
        Field(f"[{numbers.seconds(p.low)}, {numbers.seconds(p.high)}]"),
        Field(numbers.percent(p.held_out_error)),
        Field(str(p.num_cells)),
        Field(why, "bad" if why else ""),
    )


def decision_record(decision: Decision) -> Mapping[str, Any]:
    """The decision as JSON values, for programs."""
    return {
        "best": list(decision.best),
        "choices": [
            {
                "policy": r.policy,
                "time_lost": r.regret,
                "low": r.low,
                "high": r.high if math.isfinite(r.high) else None,
                "cases": sorted(r.choices),
            }
            for r in (*decision.fixed, *([decision.rule] if decision.rule else []))
        ],
        "crossovers": [
            {
                "axis": c.axis,
                "where": dict(c.fixed),
                "below": c.below,
                "above": c.above,
                "estimate": c.estimate,
                "low": c.low,
                "high": c.high,
                "cases": list(c.cases),
            }
            for c in decision.crossovers
        ],
        "open": sorted(decision.open_cases),
        "uncovered": decision.uncovered,
    }
