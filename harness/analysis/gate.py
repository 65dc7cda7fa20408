"""What makes a comparison fail in continuous integration, as sentences; none: it passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from harness.analysis.between import ERROR_TOLERANCE, MEMORY_TOLERANCE, RunComparison
from harness.errors import InvalidValueError
from harness.rows import Status
from harness.statistics.verdicts import Verdict

FAIL_ON = ("slower", "incorrect", "more_memory", "less_exact", "missing")


def check_fail_on(kinds: Iterable[str]) -> tuple[str, ...]:
    """The kinds themselves.

    Raises:
        InvalidValueError: one of them is unknown.
    """
    wanted = tuple(kinds)
    for kind in wanted:
        if kind not in FAIL_ON:
            raise InvalidValueError("fail-on", "a finding", kind, FAIL_ON)
    return wanted


def breaches_within(
    cells: pd.DataFrame, comparisons: pd.DataFrame, kinds: Sequence[str]
) -> list[str]:
    """What one run holds against its implementations.

    Args:
        cells: See ``harness.analysis.cells``.
        comparisons: See ``harness.analysis.compare``; slower, more memory and less exact are
            meant against the reference of each line.
    """
    by_key = cells.set_index(["case_key", "implementation"])
    found = []
    if "incorrect" in kinds:
        wrong = cells[cells["status"] == Status.INCORRECT.value]
        found += [
            f"incorrect: {name} on {case}: {reasons}"
            for name, case, reasons in zip(
                wrong["implementation"], wrong["case_id"], wrong["reasons"], strict=True
            )
        ]
    for line in comparisons.to_dict("records"):
        cell = by_key.loc[(line["case_key"], line["implementation"])]
        reference = by_key.loc[(line["case_key"], line["against"])]
        place = f"{line['implementation']} on {cell['case_id']}, against {line['against']}"
        if "slower" in kinds and line["verdict"] == Verdict.SLOWER.value:
            found.append(f"slower: {place}: {line['ratio']:.3g}x")
        for kind, column, factor in _GROWTHS:
            before, after = reference[column], cell[column]
            if kind in kinds and _grew(before, after, factor):
                found.append(f"{kind}: {place}: {before:.4g} -> {after:.4g}")
    return found


_GROWTHS = (
    ("more_memory", "peak_alloc_bytes", 1 + MEMORY_TOLERANCE),
    ("less_exact", "worst_scaled_u", ERROR_TOLERANCE),
)


def _grew(before: object, after: object, factor: float) -> bool:
    if pd.isna(before) or pd.isna(after):  # type: ignore[call-overload]
        return False
    return bool(after > before * factor)  # type: ignore[operator]


def breaches_between(comparison: RunComparison, kinds: Sequence[str]) -> list[str]:
    """What the new run does worse than the old one."""
    found = []
    for line in comparison.table.to_dict("records"):
        for kind in str(line["findings"]).split("; "):
            if kind in kinds:
                found.append(f"{kind}: {line['implementation']} on {line['case_id']}")
    return found
