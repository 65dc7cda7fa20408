"""The answer in sentences: what to use where, how sure that is, what it costs, what is missing.

Every sentence carries the keys of the cases that it speaks of, so that a reader can look them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.analysis.decide import Decision
from harness.report import numbers
from harness.report.content import Content
from harness.report.phrases import (
    MANY,
    Sentence,
    case_labels,
    cost_text,
    crossover_text,
    either,
    shared_axes,
    together,
)
from harness.report.recommendation import recommendation
from harness.report.tables import AXIS_LABELS, axis_text, fixed_axes
from harness.rows import Status

_GROUPS = 4
_NAMED_CASES = 3
_ENDS = {
    Status.UNSUPPORTED: "was unsupported",
    Status.INCORRECT: "gave wrong results",
    Status.OUT_OF_MEMORY: "ran out of memory",
    Status.TIMEOUT: "took too long",
    Status.CRASHED: "crashed",
    Status.ERROR: "raised an error",
}


def answer(content: Content, decision: Decision) -> list[Sentence]:
    """The answer to "what should I use?", most important first."""
    if not decision.best:
        return [Sentence("Nothing can be recommended: no implementation ran rightly.", (), True)]
    return [
        *recommendation(content, decision),
        *_sureness(content, decision),
        *_where(content, decision),
        *_flips(decision),
        *_dearest(decision),
        *_missing(content, decision),
    ]


def main_sentences(content: Content, decision: Decision) -> list[Sentence]:
    """The few that a first screen needs."""
    return [sentence for sentence in answer(content, decision) if sentence.is_main]


def _sureness(content: Content, decision: Decision) -> Iterator[Sentence]:
    states = decision.cells["state"]
    parts = []
    for state, words in (
        ("clear", "one implementation is surely the fastest"),
        ("tie", f"the first are equal within {numbers.percent(content.margin)}"),
        ("unresolved", "the first can't be told apart yet"),
        ("only", "only one implementation can be used"),
        ("none", "none can be used"),
    ):
        number = int((states == state).sum())
        if number:
            parts.append(f"in {number} {words}")
    total = numbers.count(len(states), "case")
    text = f"How sure: of {total}, {'; '.join(parts)}."
    if len(parts) == 1:
        text = f"How sure: {parts[0].removeprefix(f'in {len(states)} ')} in all {total}."
    yield Sentence(text, tuple(decision.cells["case_key"]), is_main=True)
    yield from _open(content, decision)


def _open(content: Content, decision: Decision) -> Iterator[Sentence]:
    """Which cases are not decided, and what to do about it."""
    keys = [str(k) for k in decision.cells.loc[decision.cells["state"] == "unresolved", "case_key"]]
    if not keys:
        return
    labels = case_labels(decision.cells, content.axes)
    named = "; ".join(labels[key] for key in keys[:_NAMED_CASES])
    more = f"; and {len(keys) - _NAMED_CASES} more" if len(keys) > _NAMED_CASES else ""
    few = f", {len(decision.open_cases)} of them with too few rounds for an interval"
    run = content.run.name if content.run.is_absolute() else content.run
    them = "it" if len(keys) == 1 else "them"
    text = (
        f"Open: {named}{more}{few if decision.open_cases else ''}. "
        f"`mha-bench decide {run} --refine` measures {them} again."
    )
    yield Sentence(text, tuple(keys), is_main=True)


def _where(content: Content, decision: Decision) -> Iterator[Sentence]:
    """Cases grouped by their best set, the largest group first."""
    groups: dict[tuple[str, ...], list[Mapping[Any, Any]]] = {}
    for winner in decision.cells.to_dict("records"):
        groups.setdefault(tuple(sorted(winner["best"])), []).append(winner)
    is_said = set(decision.cells["state"]) == {"clear"} and len(groups) == 1
    if is_said:  # the recommendation's own words
        return
    ranked = sorted(((n, g) for n, g in groups.items() if n), key=lambda g: (-len(g[1]), g[0]))
    if len(ranked) > _GROUPS:
        rest = [winner for _, found in ranked[_GROUPS:] for winner in found]
        keys = tuple(str(winner["case_key"]) for winner in rest)
        yield Sentence(
            f"{numbers.count(len(rest), 'case')} have other first places: see the map.", keys
        )
    for names, found in ranked[:_GROUPS]:
        keys = tuple(str(winner["case_key"]) for winner in found)
        places = _places(content, decision, keys)
        if len(names) == 1:
            verb = (
                "is the fastest" if found[0]["state"] != "only" else "is the only one that is right"
            )
            yield Sentence(f"{names[0]} {verb} {places}.", keys)
        else:
            is_tie = all(winner["state"] == "tie" for winner in found)
            verb = "tie for" if is_tie else "share"
            yield Sentence(f"{together(names)} {verb} the first place {places}.", keys)


def _places(content: Content, decision: Decision, keys: Sequence[str]) -> str:
    total = len(decision.cells)
    if len(keys) == total:
        return f"in all {numbers.count(total, 'case')}" if total > 1 else "in the only case"
    if len(keys) <= 2:
        labels = case_labels(decision.cells, content.axes)
        return "at " + " and at ".join(labels[key] for key in keys)
    shared = shared_axes(decision.cells, keys, content.axes)
    return f"in {len(keys)} of {total} cases" + (f": {shared}" if shared else "")


def _flips(decision: Decision) -> Iterator[Sentence]:
    """Crossovers between the fastest on either side; the table has the others too."""
    fastest = dict(zip(decision.cells["case_key"], decision.cells["fastest"], strict=True))
    resolved = [
        crossover
        for crossover in decision.crossovers
        if not crossover.is_open
        and [crossover.below, crossover.above] == [fastest.get(key) for key in crossover.cases]
    ]
    for crossover in resolved[:3]:
        yield Sentence(f"{crossover_text(crossover)}.", crossover.cases)
    if len(resolved) > 3:
        keys = tuple(key for crossover in resolved[3:] for key in crossover.cases)
        more = numbers.count(len(resolved) - 3, "more such flip")
        yield Sentence(f"{more}: see Crossovers.", keys)


def _dearest(decision: Decision) -> Iterator[Sentence]:
    """What the worst choice among those that cover as much would cost."""
    covering = [r for r in decision.fixed if r.num_cells == decision.fixed[0].num_cells]
    worst = covering[-1]
    if len(covering) > 1 and worst.policy not in decision.best:
        verb = "takes" if worst.regret >= 1 else "costs"
        text = f"The dearest choice, {worst.policy}, {verb} {cost_text(worst)}."
        yield Sentence(text, tuple(worst.choices))


def _missing(content: Content, decision: Decision) -> Iterator[Sentence]:
    """What has no figure: statuses other than ok, points left out, demand that nothing covers."""
    bad = content.cells[content.cells["status"] != Status.OK.value]
    total = content.cells["case_key"].nunique()
    for (name, status), group in bad.groupby(["implementation", "status"], sort=True):
        reason = str(group["reasons"].iloc[0])
        extent = "every case" if len(group) == total else f"{len(group)} of {total} cases"
        yield Sentence(
            f"Not measured: {name} {_ENDS[Status(str(status))]} in {extent}"
            + (f" ({reason})." if reason else "."),
            tuple(group["case_key"]),
        )
    yield Sentence(
        f"All this holds for {_extent(content)}. Nothing else was measured: not other dtypes, "
        "masks, modes or devices.",
        tuple(content.cells["case_key"].unique()),
    )
    if content.left_out:
        yield Sentence(f"{numbers.count(len(content.left_out), 'point')} of the plan left out.")
    if decision.uncovered > 1e-9:
        examples = ", ".join(decision.uncovered_examples)
        share = numbers.percent(decision.uncovered)
        yield Sentence(f"{share} of the workload is not covered by any measured case: {examples}.")


def _extent(content: Content) -> str:
    """What all cases share, and the range of what varies."""
    ranges = []
    for axis in content.axes:
        values = sorted(content.cells[axis].unique().tolist())
        is_range = len(values) > 2 and not isinstance(values[0], str)
        said = (
            f"{axis_text(values[0])} to {axis_text(values[-1])}"
            if is_range
            else either([axis_text(value) for value in values[:MANY]])
        )
        ranges.append(f"{AXIS_LABELS.get(axis, axis)} {said}")
    return ", ".join([fixed_axes(content), *ranges])
