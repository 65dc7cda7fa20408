"""A plan in words: what `--dry-run` shows, and the line above a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.markup import escape

from harness.planning.axes import AxisValue
from harness.planning.config import RunConfig
from harness.planning.plan import Plan
from harness.planning.repro import necessary_axes

_LISTED_CASES = 20
_LISTED_VALUES = 12


def headline(plan: Plan) -> str:
    """Count and duration in one line."""
    passes = "1 pass" if plan.passes == 1 else f"{plan.passes} passes"
    cases = "1 case" if len(plan.cases) == 1 else f"{len(plan.cases):,} cases"
    return (
        f"{cases} x {_implementations(plan)} x {passes} = {plan.pairs:,} rows, "
        f"about {duration(plan.eta_s)}"
    )


def _implementations(plan: Plan) -> str:
    count = len(plan.implementations)
    return "1 implementation" if count == 1 else f"{count} implementations"


def duration(seconds: float) -> str:
    """A duration as a person would say it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"


def describe(plan: Plan, config: RunConfig) -> Iterator[str]:
    """The whole plan, in lines of rich markup."""
    yield f"[bold]{headline(plan)}[/]"
    names = [spec.name for spec in plan.implementations]
    yield escape(f"implementations: {', '.join(names)} (baseline {config.baseline})")
    for line in _shown_axes(plan, config):
        yield escape(line)
    yield ""
    for case in plan.cases[:_LISTED_CASES]:
        yield escape(f"  {case.id}")
    if len(plan.cases) > _LISTED_CASES:
        yield f"  ... and {len(plan.cases) - _LISTED_CASES:,} more"
    yield from left_out(plan)


def left_out(plan: Plan) -> Iterator[str]:
    """The points that are not measured, by reason."""
    if not plan.invalid:
        return
    total = len(plan.invalid)
    yield ""
    yield f"[yellow]{total:,} {'point is' if total == 1 else 'points are'} left out:[/]"
    for reason, count in Counter(point.reason for point in plan.invalid).most_common():
        yield escape(f"  {count:,} x {reason}")


def _shown_axes(plan: Plan, config: RunConfig) -> Iterator[str]:
    """The axes that vary, or that a case would not be the same without."""
    for point in config.points:
        yield f"  point: {', '.join(f'{axis}={_listed(values)}' for axis, values in point.items())}"
    necessary = necessary_axes(plan.cases[0])
    for axis, values in config.axes.items():
        is_fixed = bool(config.points) and all(axis in point for point in config.points)
        if not is_fixed and (len(values) > 1 or axis in necessary):
            derived = str(necessary.get(axis)) if values == (None,) else _listed(values)
            yield f"  {axis}: {derived}"


def _listed(values: Sequence[AxisValue]) -> str:
    texts = ["null" if value is None else str(value) for value in values]
    if len(texts) > _LISTED_VALUES:
        texts = [*texts[: _LISTED_VALUES - 2], "...", texts[-1]]
    return ", ".join(texts)
