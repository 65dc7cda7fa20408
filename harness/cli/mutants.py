"""`mha-bench check --mutants`: the battery on planted defects, each of which it must catch."""

from __future__ import annotations

from collections.abc import Sequence

from harness.attention import DType
from harness.choices import as_choice
from harness.cli.checking import Finding, follow
from harness.worker import Channel


def check_mutants(dtypes: Sequence[str]) -> bool:
    """Print who is caught and by which check; returns whether the battery is right about all."""
    chosen = tuple(as_choice("dtype", DType, name) for name in dtypes)
    return follow("harness.cli.mutants:run_mutants", chosen, "the battery")


def run_mutants(dtypes: tuple[DType, ...], channel: Channel) -> None:
    """Worker target: every defect must fail a check, and what is sound must pass them all.

    Args:
        dtypes: Where; empty for float32, in which every defect shows.
    """
    from harness.conformance import run_battery
    from harness.conformance.planted import DEFECTS, SOUND

    for index, kind in enumerate((*SOUND, *DEFECTS)):
        channel.enter(index)
        for dtype in dtypes or (DType.FLOAT32,):
            if dtype in kind.seen_in:
                results = run_battery(kind(), [dtype], stop_at_first=True)
                failed = [result for result in results if result.is_failure]
                channel.send(_finding(kind, dtype, failed[0].check if failed else None))


def _finding(kind: type, dtype: DType, caught_by: str | None) -> Finding:
    from harness.conformance.planted import SOUND

    about = (kind.__doc__ or "").partition("\n")[0]
    is_right = (caught_by is None) == (kind in SOUND)
    said = "passes every check" if caught_by is None else f"caught by {caught_by}"
    return Finding("ok" if is_right else "FAIL", kind.__name__, dtype.value, f"{said} ({about})")
