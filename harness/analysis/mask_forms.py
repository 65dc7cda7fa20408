"""Implementations that received the same mask in different forms: part of what tells them apart.

Who is told ``causal`` by a flag skips half of the work, and who gets a tensor reads an entry per
pair: such a comparison is fair for a user, who wants the same result, but says little of kernels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pandas as pd

from harness.analysis.cells import KEY, is_ok
from harness.mask import MaskForm

UNTOLD = MaskForm.UNKNOWN.value


@dataclass(frozen=True)
class MixedForms:
    """Forms of one mask that met in a comparison.

    Args:
        names: Who received each form, by form.
        num_cases: In how many cases they did.
    """

    names: tuple[tuple[str, tuple[str, ...]], ...]
    num_cases: int

    def __str__(self) -> str:
        return ", ".join(f"{form} in {' and '.join(names)}" for form, names in self.names)


def mixed_mask_forms(cells: pd.DataFrame) -> tuple[MixedForms, ...]:
    """Forms that differ within a case, of cells that are ``ok``; most cases first.

    A case in which nobody tells its form, as in runs of older versions, is left out.
    """
    masked = cells[is_ok(cells) & (cells["mask"] != MaskForm.NONE.value)]
    by_case: dict[str, dict[str, list[str]]] = {}
    for key, name, form in zip(
        masked["case_key"], masked["implementation"], masked["mask_form"], strict=True
    ):
        by_case.setdefault(key, {}).setdefault(form, []).append(name)
    mixed = Counter(
        tuple((form, tuple(sorted(names))) for form, names in sorted(forms.items()))
        for forms in by_case.values()
        if len(forms) > 1
    )
    return tuple(MixedForms(names, number) for names, number in mixed.most_common())


def changed_mask_forms(old: pd.DataFrame, new: pd.DataFrame) -> tuple[str, ...]:
    """``mask form of sdpa: flag -> tensor in 3 cases``, for cells of two runs where both tell."""
    both = old.merge(new, on=KEY, suffixes=("_old", "_new"))
    told = both[(both["mask_form_old"] != UNTOLD) & (both["mask_form_new"] != UNTOLD)]
    differing = told[told["mask_form_old"] != told["mask_form_new"]]
    columns = ("implementation", "mask_form_old", "mask_form_new")
    changes = Counter(zip(*(differing[column] for column in columns), strict=True))
    return tuple(
        f"mask form of {name}: {before} -> {after} in {number} case{'s' * (number > 1)}"
        for (name, before, after), number in sorted(changes.items())
    )
