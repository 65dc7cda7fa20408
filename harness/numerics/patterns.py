"""Where NaN, infinities or all-zero rows of a result differ from the exact one.

These are compared as patterns: a difference to NaN is no number, and a maximum may skip it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.numerics.expected import Expected


def pattern_faults(got: Tensor, expected: Expected) -> list[str]:
    """Differences in sentences, with the first place of each kind; empty where there are none."""
    exact = expected.value
    allowed = torch.zeros(1, dtype=torch.bool)
    if expected.may_be_nan is not None:
        allowed = expected.may_be_nan & got.isnan()
    elif bool(got.isfinite().all()) and bool(exact.isfinite().all()):
        return _zero_row_faults(got, expected, allowed)
    faults = []
    for what, same in (
        ("NaN", (got.isnan() == exact.isnan()) | allowed),
        ("+Inf", (got.isposinf() == exact.isposinf()) | allowed),
        ("-Inf", (got.isneginf() == exact.isneginf()) | allowed),
    ):
        if not bool(same.all()):
            first = int((~same).flatten().int().argmax())
            where, have = expected.element(first), float(got.flatten()[first])
            faults.append(
                f"{what} differs in {int((~same).sum())} elements, first {where}: {have:g}"
            )
    return faults + _zero_row_faults(got, expected, allowed)


def _zero_row_faults(got: Tensor, expected: Expected, allowed: Tensor) -> list[str]:
    """A query without any key has an exactly zero row, and nothing but a zero row is right."""
    if "query" not in expected.axes[:-1] or not got.numel():
        return []
    first_channel = expected.scaled[..., 0] == 0
    if not bool(first_channel.any()):
        return []
    zero = (expected.scaled == 0).all(dim=-1) & (expected.value == 0).all(dim=-1)
    wrong = zero & ((got != 0) & ~allowed).any(dim=-1)
    if not bool(wrong.any()):
        return []
    row = int(wrong.flatten().int().argmax())
    where = expected.element(row * got.shape[-1]).rpartition(",")[0]
    return [f"{int(wrong.sum())} rows must be exactly 0 (no key attends), first {where}"]
