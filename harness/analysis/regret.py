"""What a choice costs: the time lost against taking the best in each cell, with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.pairs import CasePairs
from harness.statistics.intervals import ALPHA, standard_error, unpaired_effect
from harness.statistics.quantiles import normal_quantile

_Z = normal_quantile(1 - ALPHA / 2)


@dataclass(frozen=True)
class Cell:
    """One case of a workload: what each implementation takes there.

    Args:
        key: Case key.
        weight: Share of the calls.
        times_s: Seconds per call by implementation, of those that may be chosen.
        log_se: Standard error of the log of that time relative to the cell's best.
        position: Value of the axis that a two-way rule looks at.
    """

    key: str
    weight: float
    times_s: Mapping[str, float]
    log_se: Mapping[str, float]
    position: float = 0.0

    @property
    def best_s(self) -> float:
        return min(self.times_s.values())

    @property
    def is_bounded(self) -> bool:
        """Whether the rounds bound every ratio."""
        return all(map(math.isfinite, self.log_se.values()))


@dataclass(frozen=True)
class Regret:
    """Cost of a policy over the cells that it covers.

    Args:
        policy: What is chosen, in words.
        choices: Implementation by case key.
        regret: Time lost against the best of each cell, as a fraction of that best.
        low: Lower end of the 95 % interval; never below 0.
        high: Upper end.
        num_cells: Cells covered.
        uncovered: Share of the weight in cells that the policy can't do.
    """

    policy: str
    choices: Mapping[str, str]
    regret: float
    low: float
    high: float
    num_cells: int
    uncovered: float


def cell_of(
    pairs: CasePairs, weight: float, times_s: Mapping[str, float], position: float = 0.0
) -> Cell:
    """A cell from what was measured; spreads come from the paired rounds against the fastest.

    The fastest as measured may not be the fastest: its own spread is as large as the lead that the
    rounds leave possible for another one.
    """
    best = min(times_s, key=lambda name: times_s[name])
    log_se = {name: _log_se(pairs, name, best) for name in times_s if name != best}
    leads = (_possible_lead(pairs, best, name) for name in times_s if name != best)
    log_se[best] = max(leads, default=0.0)
    return Cell(pairs.case_key, weight, times_s, log_se, position)


def _log_se(pairs: CasePairs, name: str, best: str) -> float:
    """From paired rounds; of processes that share none, from the rounds of each."""
    effect = pairs.effect(name, best, mode_floor=0.0)
    if effect is not None:
        return standard_error(effect)
    one, other = pairs.log_minima(best), pairs.log_minima(name)
    return unpaired_effect(one, other).se if one and other else math.inf


def _possible_lead(pairs: CasePairs, best: str, other: str) -> float:
    """By how much another one may truly be ahead, in the measure of standard errors."""
    effect = pairs.effect(best, other, mode_floor=0.0)
    if effect is None:
        return _log_se(pairs, other, best)
    return max(0.0, effect.centre / _Z + standard_error(effect))


def regret_of(
    policy: str, choose: Callable[[Cell], str], cells: Sequence[Cell], alpha: float = ALPHA
) -> Regret | None:
    """Regret of a policy; None where it covers no cell."""
    covered = [cell for cell in cells if choose(cell) in cell.times_s]
    best = sum(cell.weight * cell.best_s for cell in covered)
    if best == 0:
        return None
    taken = {cell.key: cell.weight * cell.times_s[choose(cell)] for cell in covered}
    spread = math.hypot(*(taken[cell.key] * cell.log_se[choose(cell)] for cell in covered)) / best
    lost = sum(taken.values()) / best - 1
    reach = normal_quantile(1 - alpha / 2) * spread
    total = sum(cell.weight for cell in cells)
    return Regret(
        policy=policy,
        choices={cell.key: choose(cell) for cell in covered},
        regret=lost,
        low=max(0.0, lost - reach),
        high=lost + reach,
        num_cells=len(covered),
        uncovered=1 - sum(cell.weight for cell in covered) / total if total else 0.0,
    )


def fixed_choices(cells: Sequence[Cell], alpha: float = ALPHA) -> list[Regret]:
    """Regret of using one implementation everywhere: those that cover most first, then by cost."""
    names = sorted({name for cell in cells for name in cell.times_s})
    found = [regret_of(name, lambda cell, n=name: n, cells, alpha) for name in names]  # type: ignore[misc]
    return sorted(
        (regret for regret in found if regret is not None),
        key=lambda regret: (round(regret.uncovered, 9), regret.regret),
    )


def best_rule(cells: Sequence[Cell], axis: str, alpha: float = ALPHA) -> Regret | None:
    """The best rule "A up to a value of the axis, B beyond it", where it beats a fixed choice.

    None where no rule of this form covers as much and costs less.
    """
    positions = sorted({cell.position for cell in cells})
    names = sorted({name for cell in cells for name in cell.times_s})
    found = []
    for threshold in positions[:-1]:
        below = [cell for cell in cells if cell.position <= threshold]
        above = [cell for cell in cells if cell.position > threshold]
        one, other = _cheapest(below, names), _cheapest(above, names)
        if one is None or other is None or one == other:
            continue
        policy = f"{one} up to {axis} {threshold:g}, {other} beyond"
        regret = regret_of(policy, _rule(one, other, threshold), cells, alpha)
        if regret is not None:
            found.append(regret)
    best = min(found, key=lambda r: (round(r.uncovered, 9), r.regret), default=None)
    fixed = fixed_choices(cells, alpha)
    if best is None or not fixed:
        return best
    is_better = (best.uncovered, best.regret) < (fixed[0].uncovered, fixed[0].regret)
    return best if is_better else None


def _rule(one: str, other: str, threshold: float) -> Callable[[Cell], str]:
    return lambda cell: one if cell.position <= threshold else other


def _cheapest(cells: Sequence[Cell], names: Sequence[str]) -> str | None:
    """The implementation that covers most of these cells, the quickest in all of them together."""
    costs = {
        name: (
            sum(cell.weight for cell in cells if name not in cell.times_s),
            sum(cell.weight * cell.times_s[name] for cell in cells if name in cell.times_s),
        )
        for name in names
        if any(name in cell.times_s for cell in cells)
    }
    return min(costs, key=lambda name: costs[name]) if costs else None
