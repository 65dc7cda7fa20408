"""Several runs over time as sentences and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.analysis.trend import Trend, run_at, trend
from harness.report import numbers
from harness.report.tables import Field, Table
from harness.store import load, read_environment

_NAMED = 12


def trend_of(runs: Sequence[Path]) -> Trend:
    """The trend of stored runs.

    Raises:
        StoreError: one of them is no run.
    """
    paths = [Path(run) for run in runs]
    are_unique = len({path.name for path in paths}) == len(paths)
    names = [path.name if are_unique else str(path) for path in paths]
    stored = zip(names, paths, strict=True)
    return trend([run_at(name, load(path), read_environment(path)) for name, path in stored])


def trend_sentences(found: Trend) -> list[str]:
    """How much changed, what, and what was not judged."""
    said = [_summary(found)]
    said += [
        f"{step.implementation} on {step.case_id} takes {step.ratio:.2f}x the time from "
        f"{step.after} on ({step.before} was the last before)."
        for step in found.steps[:_NAMED]
    ]
    if len(found.steps) > _NAMED:
        more = numbers.count(len(found.steps) - _NAMED, "more step")
        said.append(f"{more}: marked in the table.")
    if found.apart:
        said.append(f"Not judged, other hardware: {', '.join(found.apart)}.")
    return said


def _summary(found: Trend) -> str:
    """``3 of 12 cells changed for good: 2 slower, 1 faster.``"""
    if not found.steps:
        return f"No step among {numbers.count(len(found.runs), 'run')}."
    slower = sum(step.ratio > 1 for step in found.steps)
    counts = ((slower, "slower"), (len(found.steps) - slower, "faster"))
    kinds = ", ".join(f"{number} {word}" for number, word in counts if number)
    cells = numbers.count(len(found.table), "cell")
    return f"{len(found.steps)} of {cells} changed and stayed so: {kinds}."


def trend_rule(found: Trend) -> str:
    """How a step is called, in one line."""
    return (
        f"A step: the medians on both sides are more than {numbers.percent(found.margin)} apart, "
        "and further than the runs of either side differ among themselves."
    )


def runs_table(found: Trend) -> Table:
    """The runs that are judged together, oldest first, and the software that may explain a step."""
    lines = []
    before: Mapping[str, Any] = {}
    for name, started, environment in zip(
        found.runs, found.started_at, found.environments, strict=True
    ):
        packages = environment.get("software", {}).get("packages", {})
        torch = str(packages.get("torch", "not recorded"))
        is_new = bool(before) and before.get("torch") != packages.get("torch")
        cells = int(found.table[name].notna().sum())
        lines.append(
            (Field(name), Field(started), Field(torch, "bad" if is_new else ""), Field(str(cells)))
        )
        before = packages
    note = "Marked: another torch than the run before."
    return Table("Runs", ("run", "started", "torch", "cells"), tuple(lines), note, num_labels=3)


def trend_table(found: Trend) -> Table:
    """Seconds of every cell in every run, oldest first."""
    changed = {(step.case_id, step.implementation): step.after for step in found.steps}
    lines = []
    for record in found.table.reset_index().to_dict("records"):
        key = (str(record["case_id"]), str(record["implementation"]))
        fields = [_field(record[run], run == changed.get(key)) for run in found.runs]
        lines.append((Field(key[0]), Field(key[1]), *fields))
    note = "Medians; marked: the first run after a step."
    columns = ("case", "implementation", *found.runs)
    return Table("Over time", columns, tuple(lines), note, num_labels=2)


def _field(seconds: object, is_step: bool) -> Field:
    value = seconds if isinstance(seconds, float) else None
    return Field(numbers.seconds(value), "bad" if is_step else "")
