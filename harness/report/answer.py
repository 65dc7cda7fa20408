"""The answer in sentences: what to use where, how sure that is, what it costs, what is missing.

Every sentence carries the keys of the cases that it speaks of, so that a reader can look them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.crossover import Crossover
from harness.analysis.decide import Decision
from harness.analysis.regret import Regret
from harness.report import numbers
from harness.report.content import Content
from harness.report.tables import AXIS_LABELS, axis_text
from harness.rows import Status

_MANY = 6
_GROUPS = 4
_ENDS = {
    Status.UNSUPPORTED: "was unsupported",
    Status.INCORRECT: "gave wrong results",
    Status.OUT_OF_MEMORY: "ran out of memory",
    Status.TIMEOUT: "took too long",
    Status.CRASHED: "crashed",
    Status.ERROR: "raised an error",
}


@dataclass(frozen=True)
class Sentence:
    """One statement, and the cases that it rests on."""

    text: str
    case_keys: tuple[str, ...] = ()


def answer(content: Content, decision: Decision) -> list[Sentence]:
    """The answer to "what should I use?", most important first."""
    if not decision.best:
        return [Sentence("Nothing can be recommended: no implementation ran rightly.")]
    return [
        *_overall(content, decision),
        *_where(content, decision),
        *_flips(content, decision),
        *_price(content, decision),
        *_dearest(decision),
        *_sureness(content, decision),
        *_missing(content, decision),
    ]


def _overall(content: Content, decision: Decision) -> Iterator[Sentence]:
    """The best two-way rule where it surely saves more than the margin, and the best choice."""
    first, rule = decision.fixed[0], decision.rule
    saves = rule is not None and first.low - rule.high > content.margin
    if rule is not None and saves:
        yield Sentence(
            f"Use {readable_policy(rule.policy)}: it costs {_regret(rule)} more time than the best "
            "of each case.",
            tuple(rule.choices),
        )
    opening = "As one choice, use" if saves else "Use"
    cost = f"it costs {_regret(first)} more time than the best of each case"
    if first.high < 0.0005:
        cost = "nothing is faster in any of these cases"
    text = f"{opening} {_recommendation(content, decision)}: {cost}."
    yield Sentence(text, tuple(first.choices))


def _recommendation(content: Content, decision: Decision) -> str:
    """The cheapest single choice, with its equals, or with those that it can't be told from."""
    first, *rest = [r for r in decision.fixed if r.policy in decision.best]
    equals = [r.policy for r in rest if r.high <= first.low + content.margin]
    unsure = [r.policy for r in rest if r.policy not in equals]
    text = f"{_either([first.policy, *equals])} {_everywhere(content, first)}"
    if equals:
        text += f" (equal within {numbers.percent(content.margin)})"
    if unsure:
        text += f", the cheapest as measured ({_either(unsure)} can't be told from it yet)"
    return text


def _dearest(decision: Decision) -> Iterator[Sentence]:
    """What the worst choice among those that cover as much would cost."""
    covering = [r for r in decision.fixed if r.num_cells == decision.fixed[0].num_cells]
    worst = covering[-1]
    if len(covering) > 1 and worst.policy not in decision.best:
        yield Sentence(
            f"The dearest choice, {worst.policy}, costs {_regret(worst)} more time.",
            tuple(worst.choices),
        )


def readable_policy(policy: str) -> str:
    """A two-way rule with the axis as people call it."""
    for axis, label in AXIS_LABELS.items():
        policy = policy.replace(f"up to {axis} ", f"up to {label} ")
    return policy


def _everywhere(content: Content, choice: Regret) -> str:
    total = content.cells["case_key"].nunique()
    if choice.num_cells == total:
        return "everywhere" if total > 1 else "here"
    return f"in the {choice.num_cells} of {total} cases that it covers"


def _regret(choice: Regret) -> str:
    return (
        f"{numbers.percent(choice.regret)} "
        f"[{numbers.percent(choice.low)}, {numbers.percent(choice.high)}]"
    )


def _where(content: Content, decision: Decision) -> Iterator[Sentence]:
    """Cases grouped by their best set, the largest group first."""
    labels = _labels(content)
    groups: dict[tuple[str, ...], list[Mapping[Any, Any]]] = {}
    for winner in decision.cells.to_dict("records"):
        groups.setdefault(tuple(sorted(winner["best"])), []).append(winner)
    ranked = sorted(((n, g) for n, g in groups.items() if n), key=lambda g: (-len(g[1]), g[0]))
    if len(ranked) > _GROUPS:
        rest = [winner for _, found in ranked[_GROUPS:] for winner in found]
        keys = tuple(str(winner["case_key"]) for winner in rest)
        yield Sentence(
            f"{numbers.count(len(rest), 'case')} have other first places: see the map.", keys
        )
    for names, found in ranked[:_GROUPS]:
        keys = tuple(str(winner["case_key"]) for winner in found)
        places = _places(content, keys, labels)
        if len(names) == 1:
            verb = (
                "is the fastest" if found[0]["state"] != "only" else "is the only one that is right"
            )
            yield Sentence(f"{names[0]} {verb} {places}.", keys)
        else:
            yield Sentence(f"{_together(names)} share the first place {places}.", keys)


def _labels(content: Content) -> dict[str, str]:
    """Case key to a short text that names what varies."""
    cases = content.cells.drop_duplicates("case_key")
    return {
        str(case["case_key"]): ", ".join(
            f"{AXIS_LABELS.get(axis, axis)} {axis_text(case[axis])}" for axis in content.axes
        )
        or str(case["case_id"])
        for case in cases.to_dict("records")
    }


def _places(content: Content, keys: Sequence[str], labels: Mapping[str, str]) -> str:
    total = content.cells["case_key"].nunique()
    if len(keys) == total:
        return f"in all {numbers.count(total, 'case')}" if total > 1 else "in the only case"
    if len(keys) <= 2:
        return "at " + " and at ".join(labels[key] for key in keys)
    shared = _shared_axes(content, keys)
    return f"in {len(keys)} of {total} cases" + (f": {shared}" if shared else "")


def _shared_axes(content: Content, keys: Sequence[str]) -> str:
    """Values that all these cases and few others have: ``length 512 or 1024``."""
    cases = content.cells.drop_duplicates("case_key")
    inside = cases[cases["case_key"].isin(keys)]
    said = []
    for axis in content.axes:
        values = sorted(inside[axis].unique().tolist())
        if len(values) < cases[axis].nunique() and len(values) <= _MANY:
            listed = _either([axis_text(value) for value in values])
            said.append(f"{AXIS_LABELS.get(axis, axis)} {listed}")
    return ", ".join(said)


def _flips(content: Content, decision: Decision) -> Iterator[Sentence]:
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


def crossover_text(crossover: Crossover) -> str:
    """``a is faster up to length about 700 [650, 760], b beyond (hidden 768, heads 8)``."""
    label = AXIS_LABELS.get(crossover.axis, crossover.axis)
    place = line_text(crossover.fixed)
    return (
        f"{crossover.below} is faster up to {label} about {crossover.estimate:.0f} "
        f"{crossover_range(crossover)}, {crossover.above} beyond" + (f" ({place})" if place else "")
    )


def crossover_range(crossover: Crossover) -> str:
    low = "below" if crossover.low is None else f"{crossover.low:.0f}"
    high = "beyond" if crossover.high is None else f"{crossover.high:.0f}"
    return f"[{low}, {high}]"


def line_text(fixed: Mapping[str, Any]) -> str:
    return ", ".join(f"{AXIS_LABELS.get(a, a)} {axis_text(v)}" for a, v in fixed.items())


def _price(content: Content, decision: Decision) -> Iterator[Sentence]:
    """Memory and error of the recommended choice, where they are largest."""
    name, keys = decision.fixed[0].policy, set(decision.fixed[0].choices)
    cells = content.cells[content.cells["implementation"] == name]
    cells = cells[cells["case_key"].isin(keys)]
    cells = cells[cells["status"] == Status.OK.value]
    memory, error = cells["peak_alloc_bytes"].max(), cells["worst_scaled_u"].max()
    if numbers.is_absent(memory) and numbers.is_absent(error):
        return
    said = []
    if not numbers.is_absent(memory):
        said.append(f"at most {numbers.byte_count(memory)} of extra memory")
    if not numbers.is_absent(error):
        share = cells["worst_bound_share"].max()
        bound = (
            ""
            if numbers.is_absent(share)
            else f", {numbers.percent(share)} of what rounding allows"
        )
        said.append(f"an error of at most {numbers.in_roundoffs(error)}{bound}")
    yield Sentence(f"{name} needs {' and '.join(said)}.", tuple(cells["case_key"]))


def _sureness(content: Content, decision: Decision) -> Iterator[Sentence]:
    states = decision.cells["state"]
    total = len(states)
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
    if parts:
        keys = tuple(decision.cells.loc[states == "unresolved", "case_key"])
        yield Sentence(f"How sure: of {numbers.count(total, 'case')}, {'; '.join(parts)}.", keys)


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
    if content.left_out:
        yield Sentence(f"{numbers.count(len(content.left_out), 'point')} of the plan left out.")
    if decision.uncovered > 1e-9:
        examples = ", ".join(decision.uncovered_examples)
        share = numbers.percent(decision.uncovered)
        yield Sentence(f"{share} of the workload is not covered by any measured case: {examples}.")


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _together(names: Sequence[str]) -> str:
    if len(names) > _MANY:
        return f"{len(names)} implementations"
    return f"{', '.join(names[:-1])} and {names[-1]}"
