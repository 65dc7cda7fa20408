"""The comparison of two runs as a table and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.analysis.between import RunComparison, compare_runs
from harness.report import numbers
from harness.report.content import configured_margin
from harness.report.tables import Field, Table
from harness.store import load, read_environment

_MARKS = {"slower": "bad", "incorrect": "bad", "crashed": "bad", "faster": "best"}


def comparison_of(old: Path, new: Path, margin: float | None = None) -> RunComparison:
    """Compare two stored runs; the margin is the larger of theirs unless given.

    Raises:
        StoreError: one of them is no run.
    """
    wanted = max(configured_margin(old), configured_margin(new)) if margin is None else margin
    environments = (read_environment(old), read_environment(new))
    return compare_runs(load(old), load(new), *environments, wanted)


def sentences(comparison: RunComparison) -> list[str]:
    """What a reader must know before the table."""
    return [
        *comparison.statement,
        *(f"Different hardware: {difference}" for difference in comparison.hardware),
        *(f"Changed: {difference}" for difference in comparison.circumstances),
        _tally(comparison),
    ]


def _tally(comparison: RunComparison) -> str:
    table = comparison.table
    found: dict[str, int] = {}
    for text in table["findings"]:
        for finding in filter(None, text.split("; ")):
            found[finding] = found.get(finding, 0) + 1
    shared = int(((table["status_old"] != "none") & (table["status_new"] != "none")).sum())
    said = ", ".join(f"{name} {number}" for name, number in sorted(found.items()))
    return f"{numbers.count(shared, 'cell')} in both runs; {said or 'no change found'}"


def between_table(comparison: RunComparison) -> Table:
    """Cells that changed first, then the others."""
    lines = sorted(comparison.table.to_dict("records"), key=lambda line: not line["findings"])
    columns = ("case", "implementation", "old", "new", "new / old", "verdict", "findings")
    note = "Ratios of times, new over old, with 95 % interval."
    return Table("New against old", columns, tuple(map(_line, lines)), note, num_labels=2)


def _line(line: Mapping[Any, Any]) -> tuple[Field, ...]:
    findings = str(line["findings"])
    mark = next((_MARKS[f] for f in findings.split("; ") if f in _MARKS), "")
    return (
        Field(line["case_id"]),
        Field(line["implementation"]),
        Field(_time(line, "old")),
        Field(_time(line, "new")),
        Field(numbers.ratio(line["ratio"], line["ratio_low"], line["ratio_high"])),
        Field(_verdict(line), mark),
        Field(findings or numbers.ABSENT, mark),
    )


def _time(line: Mapping[Any, Any], side: str) -> str:
    status = line[f"status_{side}"]
    return numbers.seconds(line[f"median_s_{side}"]) if status == "ok" else str(status)


def _verdict(line: Mapping[Any, Any]) -> str:
    words = {"none": line["why"] or numbers.ABSENT, "equivalent": "no change"}
    return str(words.get(line["verdict"], line["verdict"]))
