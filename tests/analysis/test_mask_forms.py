"""Masks that reach implementations in different forms are said; nothing else is."""

from __future__ import annotations

import pandas as pd

from harness.analysis.cells import cells_of
from harness.analysis.mask_forms import MixedForms, changed_mask_forms, mixed_mask_forms
from harness.columns import to_frame
from harness.rows import Row, Status
from tests.synthetic import make_case, make_row


def cells(*rows: Row) -> pd.DataFrame:
    return cells_of(to_frame(rows))


def row(name: str, form: str | None, mask: str = "causal", **fields: object) -> Row:
    return make_row(case=make_case(mask=mask), implementation=name, mask_form=form, **fields)


def test_a_flag_beside_a_tensor_is_said_with_who_got_which() -> None:
    (found,) = mixed_mask_forms(
        cells(row("sdpa", "flag"), row("fused", "flag"), row("naive", "tensor"))
    )
    assert found == MixedForms((("flag", ("fused", "sdpa")), ("tensor", ("naive",))), 1)
    assert str(found) == "flag in fused and sdpa, tensor in naive"


def test_a_form_that_nobody_knows_may_differ_from_one_that_is_told() -> None:
    (found,) = mixed_mask_forms(cells(row("sdpa", "flag"), row("mine", "unknown")))
    assert str(found) == "flag in sdpa, unknown in mine"


def test_equal_forms_no_mask_failed_rows_and_old_runs_are_no_finding() -> None:
    assert mixed_mask_forms(cells(row("a", "tensor"), row("b", "tensor"))) == ()
    assert mixed_mask_forms(cells(row("a", "none", "none"), row("b", "unknown", "none"))) == ()
    wrong = row("b", "tensor", status=Status.INCORRECT)
    assert mixed_mask_forms(cells(row("a", "flag"), wrong)) == ()
    assert mixed_mask_forms(cells(row("a", None), row("b", None))) == ()


def test_between_two_runs_a_form_that_changed_is_said_where_both_tell() -> None:
    old = cells(row("sdpa", "flag"), row("naive", "tensor"), row("mine", None))
    new = cells(row("sdpa", "tensor"), row("naive", "tensor"), row("mine", "tensor"))
    assert changed_mask_forms(old, new) == ("mask form of sdpa: flag -> tensor in 1 case",)
    assert changed_mask_forms(old, old) == ()
