"""How exact each implementation was: on gaussian inputs, on the worst, and against its bound."""

from __future__ import annotations

import pandas as pd

from harness.analysis.cells import is_ok
from harness.distributions import GAUSSIAN
from harness.report import numbers
from harness.report.content import Content
from harness.report.matrices import measured_implementations
from harness.report.tables import Field, Table

_ERROR, _SHARES = "worst_scaled_u", ["worst_bound_share", "lse_bound_share"]
_LSE_ERROR = "lse_scaled_u"


def exactness_table(content: Content) -> Table:
    """One line for each implementation and dtype, over all cases in which it was right."""
    columns = ["implementation", "dtype", "gaussian", "worst", "on inputs", "of bound"]
    note = (
        "Largest |error| / (P|V|) of output and gradients in unit roundoffs of the dtype; the "
        "bound is what rounding alone can do, and beyond it a row is incorrect."
    )
    right = content.cells[is_ok(content.cells) & content.cells[_ERROR].notna()]
    has_lse = bool(right[_LSE_ERROR].notna().any())
    if has_lse:
        columns.append("lse")
        note += " lse: of the log-sum-exp, over 1 + its size, of those that offer it."
    lines = [
        (Field(name), Field(str(dtype)), *_fields(cells, has_lse))
        for name in measured_implementations(content)
        for dtype, cells in right[right["implementation"] == name].groupby("dtype")
    ]
    return Table("How exact", tuple(columns), tuple(lines), note, num_labels=2)


def _fields(cells: pd.DataFrame, has_lse: bool) -> tuple[Field, ...]:
    worst = cells.sort_values(_ERROR, kind="stable").iloc[-1]
    gaussian = cells.loc[cells["inputs"] == GAUSSIAN, _ERROR].max()
    share = cells[_SHARES].max().max()
    of_lse = (Field(numbers.in_roundoffs(cells[_LSE_ERROR].max())),) if has_lse else ()
    return (
        Field(numbers.in_roundoffs(gaussian)),
        Field(numbers.in_roundoffs(worst[_ERROR])),
        Field(str(worst["inputs"])),
        Field(numbers.ABSENT if numbers.is_absent(share) else numbers.percent(float(share))),
        *of_lse,
    )
