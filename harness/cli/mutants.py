"""`mha-bench check --mutants`: the battery on planted defects, each of which it must catch.

Then what other rules see of those that bfloat16 nearly hides: why the bar is the a-priori bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.attention import DType
from harness.choices import as_choice
from harness.cli.checking import Finding, follow
from harness.worker import Channel

if TYPE_CHECKING:
    from harness.conformance.evidence import Evidence, RuleComparison


def check_mutants(dtypes: Sequence[str]) -> bool:
    """Print who is caught and by which check; returns whether the battery is right about all."""
    chosen = tuple(as_choice("dtype", DType, name) for name in dtypes)
    return follow("harness.cli.mutants:run_mutants", chosen, "the battery")


def run_mutants(dtypes: tuple[DType, ...], channel: Channel) -> None:
    """Worker target: every defect must fail a check, and what is sound must pass them all.

    Args:
        dtypes: Where; empty for float32, in which every defect shows.
    """
    from harness.conformance.evidence import compare_rules, find_evidence
    from harness.conformance.planted import DEFECTS, SOUND

    for index, kind in enumerate((*SOUND, *DEFECTS)):
        channel.enter(index)
        visible = [dtype for dtype in dtypes or (DType.FLOAT32,) if dtype in kind.seen_in]
        for evidence in find_evidence([kind], visible):
            channel.send(_finding(evidence))
    if not dtypes or DType.BFLOAT16 in dtypes:
        channel.enter(len(SOUND) + len(DEFECTS))
        for comparison in compare_rules(DType.BFLOAT16):
            channel.send(_rule_finding(comparison))


def _finding(evidence: Evidence) -> Finding:
    caught_by = evidence.caught_by
    said = "passes every check" if caught_by is None else f"caught by {caught_by}"
    about = f"{said} ({evidence.defect or 'nothing wrong'})"
    mark = "ok" if evidence.is_as_it_should_be else "FAIL"
    return Finding(mark, evidence.name, evidence.dtype.value, about)


def _rule_finding(c: RuleComparison) -> Finding:
    about = f"{c.name} on {c.inputs} inputs"
    rules = {
        f"bound x {c.bound_share:.2g}": c.bound_share <= 1,
        f"2 x naive ({c.naive_ratio:.2g} x)": c.naive_ratio <= 2,
        "allclose(1e-2)": c.allclose,
    }
    said = ", ".join(f"{rule} {'passes' if ok else 'fails'}" for rule, ok in rules.items())
    return Finding("rule", about, DType.BFLOAT16.value, f"{said} ({c.defect or 'nothing wrong'})")
