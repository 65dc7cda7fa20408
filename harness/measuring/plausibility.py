"""Refusing times that this machine can't have reached."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.rows import Row, Status, failed

_SUSPICIOUS, _IMPOSSIBLE = 1.25, 4.0  # times the measured ceiling


def plausible(row: Row, ceiling: float | None) -> Row:
    """The row, refused when it computes several times faster than this machine can.

    The ceiling itself is a measurement and can be low by the machine's slow state, hence the wide
    factor for refusing and a flag in between.

    Args:
        ceiling: FLOP/s of the machine's fastest matrix product; None where it is not known.
    """
    if not ceiling or not row.flop_count or not row.samples.times_s:
        return row
    achieved = row.flop_count / float(np.median([min(burst) for burst in row.samples.times_s]))
    if achieved > _IMPOSSIBLE * ceiling:
        return failed(
            row,
            Status.INCORRECT,
            f"implausible time: {achieved:.3g} FLOP/s where a matrix product reaches "
            f"{ceiling:.3g}; does it return before its work is done (then give it a "
            "synchronize method), or not compute it?",
        )
    if achieved > _SUSPICIOUS * ceiling:
        flag = f"above_ceiling: {achieved / ceiling:.2f} of the rate of a matrix product"
        return replace(row, flags=(*row.flags, flag))
    return row
