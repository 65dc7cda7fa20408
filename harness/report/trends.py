"""Several runs over time as sentences and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.trend import Trend, run_at, trend
from harness.report import numbers
from harness.report.tables import Field, Table
from harness.store import load, read_environment


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
    """What changed, and what was not judged."""
    said = [
        f"{step.implementation} on {step.case_id} takes {step.ratio:.2f}x the time from "
        f"{step.after} on (until {step.before} before)"
        for step in found.steps
    ]
    if not said:
        said = [f"No step among {numbers.count(len(found.runs), 'run')}."]
    if found.apart:
        said.append(f"Not judged, other hardware: {', '.join(found.apart)}.")
    return said


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
