"""The first sentences of an answer: what to use, what that costs, and what it costs to want more.

Costs are means over the same cases for every choice: those whose ratios have an interval. Cases
without one are open; they are named, and never hide what the others say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pandas as pd

from harness.analysis.decide import Decision
from harness.analysis.regret import Regret
from harness.report import numbers
from harness.report.content import Content
from harness.report.phrases import Sentence, cost_text, either, readable_policy, together
from harness.rows import Status

_NOTHING = 0.0005  # what percent() shows as less than 0.1 %
_CLEARLY_LESS = 0.5
_LARGEST_TIE = 0.1  # a margin that noise has raised beyond this makes no tie


def recommendation(content: Content, decision: Decision) -> Iterator[Sentence]:
    """What to use, its price, and the cheapest way to a clearly smaller price."""
    yield from _overall(content, decision)
    policy = decision.rule if _saves(content, decision) else decision.fixed[0]
    if policy is not None:
        yield from _price(content, decision, policy)


def _saves(content: Content, decision: Decision) -> bool:
    """Whether the two-way rule surely saves more than the margin."""
    rule = decision.rule
    return rule is not None and decision.fixed[0].low - rule.high > content.margin


def _overall(content: Content, decision: Decision) -> Iterator[Sentence]:
    """The best two-way rule where it pays, and the best single choice."""
    first, rule = decision.fixed[0], decision.rule
    saves = _saves(content, decision)
    if rule is not None and saves:
        tied = _tied(decision, rule)
        text = (
            f"Use {readable_policy(rule.policy)}{tied}: "
            f"{cost_text(rule)} {_compared(rule)}{_open_part(decision)}."
        )
        yield Sentence(text, tuple(rule.choices), is_main=True)
    opening = "As one choice, use" if saves else "Use"
    text = f"{opening} {_choice(content, decision)}{_open_part(decision)}."
    yield Sentence(text, tuple(first.choices), is_main=True)


def _compared(choice: Regret) -> str:
    return "than the best of each case" if choice.regret < 1 else "of the best of each case"


def _choice(content: Content, decision: Decision) -> str:
    """The cheapest single choice and why it, with its equals and what can't be told from it."""
    first, *rest = [r for r in decision.fixed if r.policy in decision.best]
    where = _everywhere(decision, first)
    if not math.isfinite(first.high):
        return (
            f"{first.policy} {where} for now, the quickest as measured: no case has rounds enough "
            "for an interval, so nothing is sure"
        )
    margin = min(content.margin, _LARGEST_TIE)
    equals = [r.policy for r in rest if r.high <= first.low + margin]
    unsure = [r.policy for r in rest if r.policy not in equals]
    text = f"{either([first.policy, *equals])} {where}"
    if equals:
        text += f"; they tie, equal within {numbers.percent(margin)}"
    if first.high < _NOTHING and not _is_surely_first(decision, first):
        may = f"; {either(unsure)} may be as fast" if unsure else ""
        return f"{text}: nothing is faster in any of these cases{may}"
    if unsure:
        text += (
            f", the cheapest as measured, though {either(unsure)} can't be told from it over "
            f"{'these cases' if decision.open_cases else 'all cases'} together"
        )
    return f"{text}: {_reason(decision, first)}"


def _is_surely_first(decision: Decision, first: Regret) -> bool:
    judged = decision.cells[decision.cells["case_key"].isin(list(first.choices))]
    return bool(((judged["state"] == "clear") & (judged["fastest"] == first.policy)).all())


def _reason(decision: Decision, first: Regret) -> str:
    """Surely first everywhere and by how much; or what it costs against the best of each case."""
    judged = decision.cells[decision.cells["case_key"].isin(list(first.choices))]
    if len(judged) and _is_surely_first(decision, first):
        cases = "in every case" if len(judged) > 1 else "of all"
        return f"surely the fastest {cases}, {_lead(judged)}"
    return f"{cost_text(first)} {_compared(first)}"


def _lead(cells: pd.DataFrame) -> str:
    """``1.5x to 1.8x ahead of the next best``."""
    ratios = [f"{r:.1f}x" if r >= 1.1 else f"{r:.2f}x" for r in cells["runner_up_ratio"]]
    low, high = min(ratios, key=_number), max(ratios, key=_number)
    return f"{low if low == high else f'{low} to {high}'} ahead of the next best"


def _number(ratio: str) -> float:
    return float(ratio.removesuffix("x"))


def _tied(decision: Decision, rule: Regret) -> str:
    """`` (sdpa_flash ties with sdpa)``: what shares the first place wherever a name is chosen."""
    best = dict(zip(decision.cells["case_key"], decision.cells["best"], strict=True))
    state = dict(zip(decision.cells["case_key"], decision.cells["state"], strict=True))
    said = []
    for name in dict.fromkeys(rule.choices.values()):
        keys = [key for key, chosen in rule.choices.items() if chosen == name]
        if all(state[key] == "tie" for key in keys):
            same = set.intersection(*(set(best[key]) for key in keys)) - {name}
            if same:
                verb = "ties" if len(same) == 1 else "tie"
                said.append(f"{together(sorted(same)) if len(same) > 1 else min(same)} {verb} "
                            f"with {name}")  # fmt: skip
    return f" ({', '.join(said)})" if said else ""


def _everywhere(decision: Decision, choice: Regret) -> str:
    """Of the decided cases that count, those that the choice covers."""
    decided = _num_weighted(decision) - len(decision.open_cases)
    if choice.num_cells >= decided:
        return "everywhere" if decided > 1 else "here"
    return f"in the {choice.num_cells} of {decided} cases that it covers"


def _num_weighted(decision: Decision) -> int:
    """Cases that count at all."""
    return int((decision.cells["weight"] > 0).sum())


def _open_part(decision: Decision) -> str:
    """Which part of the cases a cost is taken over, where it is not all of them."""
    if not decision.open_cases:
        return ""
    total = _num_weighted(decision)
    decided = total - len(decision.open_cases)
    return f" (over the {decided} of {total} cases that have an interval)"


def _price(content: Content, decision: Decision, policy: Regret) -> Iterator[Sentence]:
    """Memory and error of what is recommended where they are largest, and who needs much less."""
    memory, error, share = _largest(content, policy.choices)
    said = []
    if memory is not None:
        said.append(f"needs at most {numbers.byte_count(memory)} of extra memory")
    if error is not None:
        bound = "" if share is None else f" ({numbers.percent(share)} of what rounding allows)"
        off = numbers.significant(error, 2)
        said.append(f"is off by at most {off} unit roundoffs{bound}")
    if not said:
        return
    names = set(policy.choices.values())
    who = next(iter(names)) if len(names) == 1 else "This"
    others = [*_cheaper(content, decision, policy, memory, error)]
    text = f"{who} {' and '.join(said)}."
    yield Sentence(" ".join([text, *others]), tuple(policy.choices), is_main=True)


def _largest(
    content: Content, choices: Mapping[str, str]
) -> tuple[float | None, float | None, float | None]:
    """Largest extra memory, scaled error and share of the bound over what is chosen."""
    pairs = zip(content.cells["case_key"], content.cells["implementation"], strict=True)
    cells = content.cells[[choices.get(str(key)) == name for key, name in pairs]]
    cells = cells[cells["status"] == Status.OK.value]
    found = (cells[c].max() for c in ("peak_alloc_bytes", "worst_scaled_u", "worst_bound_share"))
    memory, error, share = (None if numbers.is_absent(value) else float(value) for value in found)
    return memory, error, share


def _cheaper(
    content: Content,
    decision: Decision,
    policy: Regret,
    memory: float | None,
    error: float | None,
) -> Iterator[str]:
    """The quickest that needs at most half the memory, and the quickest with half the error."""
    names = set(policy.choices.values())
    rivals = [
        (rival, *_largest(content, rival.choices)[:2])
        for rival in decision.fixed
        if rival.num_cells == policy.num_cells and rival.policy not in names
    ]
    less = [
        (r, m) for r, m, _ in rivals if m is not None and memory and m <= memory * _CLEARLY_LESS
    ]
    if less:
        rival, needed = less[0]
        yield f"{rival.policy} needs {numbers.byte_count(needed)}, for {cost_text(rival)}."
    exact = [(r, e) for r, _, e in rivals if e is not None and error and e <= error * _CLEARLY_LESS]
    if exact:
        rival, off = exact[0]
        yield f"{rival.policy} stays within {numbers.significant(off, 2)}, for {cost_text(rival)}."
