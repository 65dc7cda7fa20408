"""How far a result is from the exact one: measures of error that no NaN slips through.

Errors are taken in float64. A maximum is NaN as soon as one element is, and every gate asks ``not
(error <= bound)``, so that NaN fails. Where the exact result itself is not finite, only the pattern
of NaN and infinities is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.interface import Contract

Measure = float | int | str | None

_ULP_SAMPLE = 1 << 17  # elements that the percentile of ULP distances is read from, about


@dataclass(frozen=True)
class Expected:
    """What one output should be, and how far rounding may move it; all of one shape.

    Args:
        value: Float64.
        scaled: What relative errors are measured against: P|V| for ``o``, likewise for others.
        bound: The largest error that a contract allows, element by element.
        axes: Name of each axis, for locations.
        head_axes: Axes that name a head; empty where an output has none.
        row_axes: Axes that name a row.
        shape: Shape in which an implementation gives the output; reshaped to ``value``'s.
        dtype: In which it gives it; None where it may choose.
        rows: Positions along the axis ``query`` that are certified; None for all.
        may_be_nan: Where NaN is no fault though the exact value is finite: an input of this head is
            NaN or infinite, and whether it gets past a mask is a policy. None: nowhere.
        yardstick: Largest error of the same-dtype plain softmax attention.
    """

    value: Tensor
    scaled: Tensor
    bound: Callable[[Contract], Tensor]
    axes: tuple[str, ...]
    head_axes: tuple[int, ...]
    row_axes: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    rows: Tensor | None = None
    may_be_nan: Tensor | None = None
    yardstick: float | None = None

    def certified(self, output: Tensor) -> Tensor:
        """The elements of an output that are compared, on the CPU, in its own dtype."""
        output = output.detach()
        if self.rows is not None:
            output = output.index_select(self.axes.index("query"), self.rows.to(output.device))
        return output.cpu().reshape(self.value.shape)


def location(expected: Expected, flat_index: int) -> str:
    """Where an element stands, as ``batch 0, head 3, query 511, channel 17``."""
    # not torch's unravel_index: its first call imports sympy, which takes half a second
    at = np.unravel_index(flat_index, tuple(expected.value.shape))
    named = dict(zip(expected.axes, (int(i) for i in at), strict=True))
    if expected.rows is not None:
        named["query"] = int(expected.rows[named["query"]])
    return ", ".join(f"{axis} {index}" for axis, index in named.items())


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator with 0 / 0 = 0: no error needs no allowance."""
    return torch.where(numerator == 0, 0.0, numerator / denominator)


def error_of(got: Tensor, expected: Expected) -> Tensor:
    """Signed error in float64; 0 where the exact value is not finite, for patterns tell there."""
    error = got.double() - expected.value
    usable = expected.value.isfinite()
    if expected.may_be_nan is not None:
        usable = usable & ~(expected.may_be_nan & got.isnan())
    return error if bool(usable.all()) else torch.where(usable, error, 0.0)


def measure(got: Tensor, expected: Expected, unit: float, bound: Tensor) -> dict[str, Measure]:
    """All measures of one output; ``unit`` is the unit roundoff of its dtype."""
    if not expected.value.numel():
        return {"max_abs": 0.0, "rms_relative": 0.0, "bound_share": 0.0}
    error = error_of(got, expected)
    size = error.abs()
    exact = torch.where(expected.value.isfinite(), expected.value, 0.0)
    scaled = ratio(error, expected.scaled.double().nan_to_num())
    share = ratio(size, bound.double().nan_to_num(posinf=math.inf))
    worst = int(share.argmax())
    largest = float(size.max())
    rms_relative = _relative_norm(error, exact)
    return {
        "max_abs": largest,
        "rms_relative": rms_relative,
        "rms_relative_u": rms_relative / unit,
        "scaled_u": float(scaled.abs().max()) / unit,
        **_bias(scaled / unit),
        **_shrink(error / unit, exact),
        "bound_share": float(share.max()),
        "worst_at": location(expected, worst),
        "worst_got": float(got.flatten()[worst]),
        "worst_expected": float(expected.value.flatten()[worst]),
        "ratio_to_naive": _ratio_to_naive(largest, expected.yardstick),
        "cosine": _cosine(exact + error, exact),
        **_ulp(got, expected),
        **_worst_part("head", expected.head_axes, error, exact, expected),
        **_worst_part("row", expected.row_axes, error, exact, expected),
    }


def _bias(scaled_u: Tensor) -> dict[str, Measure]:
    """Mean signed error, and its standard error: a row shares its roundings, rows are apart."""
    of_rows = scaled_u.mean(dim=-1).flatten()
    spread = float(of_rows.std()) / math.sqrt(len(of_rows)) if len(of_rows) > 1 else None
    return {"bias_u": float(of_rows.mean()), "bias_error_u": spread}


def _shrink(error_u: Tensor, exact: Tensor) -> dict[str, Measure]:
    """Mean error along the exact value, relative to its mean size: negative towards zero.

    Outputs that average to 0 hide a rounding towards zero from ``bias_u``, but not from this.
    """
    size = float(exact.abs().mean())
    if not size:
        return {"shrink_u": None, "shrink_error_u": None}
    of_rows = (error_u * exact.sign() / size).mean(dim=-1).flatten()
    spread = float(of_rows.std()) / math.sqrt(len(of_rows)) if len(of_rows) > 1 else None
    return {"shrink_u": float(of_rows.mean()), "shrink_error_u": spread}


def _relative_norm(error: Tensor, exact: Tensor) -> float:
    size, whole = float(error.norm()), float(exact.norm())
    return 0.0 if size == 0 else size / whole if whole else math.inf


def _ratio_to_naive(largest: float, yardstick: float | None) -> float | None:
    if yardstick is None or not math.isfinite(yardstick) or yardstick == 0:
        return None
    return largest / yardstick


def _cosine(got: Tensor, exact: Tensor) -> float | None:
    lengths = float(got.norm()) * float(exact.norm())
    return float((got * exact).sum()) / lengths if lengths else None


def _ulp(got: Tensor, expected: Expected) -> dict[str, Measure]:
    """Distance in representable numbers from the exact value rounded to the output's dtype."""
    steps = (_ordinal(got) - _ordinal(expected.value.to(got.dtype))).abs_().flatten()
    finite = (expected.value.isfinite() & got.isfinite()).flatten()
    if not bool(finite.all()):
        steps = steps[finite]
    if not steps.numel():
        return {"ulp_max": None, "ulp_p99": None}
    # An odd stride goes through all channels; the percentile needs no more than these.
    sample = steps[:: steps.numel() // _ULP_SAMPLE * 2 + 1]
    p99 = int(sample.kthvalue(math.ceil(0.99 * sample.numel())).values)
    return {"ulp_max": int(steps.max()), "ulp_p99": p99}


def _ordinal(tensor: Tensor) -> Tensor:
    """Integers in the order of the floats, neighbours one apart, both zeros equal."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.contiguous().view(kind)
    # Negative floats count down from the lowest integer: mirror them.
    mirrored = bits ^ ((bits >> (8 * tensor.element_size() - 1)) & torch.iinfo(kind).max)
    return mirrored.long() + (bits < 0)


def _worst_part(
    name: str, axes: tuple[int, ...], error: Tensor, exact: Tensor, expected: Expected
) -> dict[str, Measure]:
    """RMS-relative error of the worst head or row, and which one it is."""
    if not axes:
        return {}
    over = tuple(axis for axis in range(error.dim()) if axis not in axes)
    squares = (error.square(), exact.square())
    sizes = ratio(*((s.sum(over) for s in squares) if over else squares)).sqrt()
    worst = np.unravel_index(int(sizes.argmax()), tuple(sizes.shape))
    index = {expected.axes[axis]: int(i) for axis, i in zip(axes, worst, strict=True)}
    if expected.rows is not None and "query" in index:
        index["query"] = int(expected.rows[index["query"]])
    where = ", ".join(f"{axis} {i}" for axis, i in index.items())
    return {f"worst_{name}": where, f"worst_{name}_rms_relative": float(sizes.max())}


def pattern_faults(got: Tensor, expected: Expected) -> list[str]:
    """Where NaN, infinities or all-zero rows differ from the exact result, in sentences."""
    exact = expected.value
    allowed = torch.zeros(1, dtype=torch.bool)
    if expected.may_be_nan is not None:
        allowed = expected.may_be_nan & got.isnan()
    faults = []
    for what, same in (
        ("NaN", (got.isnan() == exact.isnan()) | allowed),
        ("+Inf", (got.isposinf() == exact.isposinf()) | allowed),
        ("-Inf", (got.isneginf() == exact.isneginf()) | allowed),
    ):
        if not bool(same.all()):
            where = location(expected, int((~same).flatten().int().argmax()))
            have = float(got.flatten()[int((~same).flatten().int().argmax())])
            faults.append(
                f"{what} differs in {int((~same).sum())} elements, first {where}: {have:g}"
            )
    return faults + _zero_row_faults(got, expected, allowed)


def _zero_row_faults(got: Tensor, expected: Expected, allowed: Tensor) -> list[str]:
    if "query" not in expected.axes or not got.numel():
        return []
    zero = (expected.scaled == 0).all(dim=-1) & (expected.value == 0).all(dim=-1)
    wrong = zero & ((got != 0) & ~allowed).any(dim=-1)
    if not bool(wrong.any()):
        return []
    row = int(wrong.flatten().int().argmax())
    where = location(expected, row * got.shape[-1]).rpartition(",")[0]
    return [f"{int(wrong.sum())} rows must be exactly 0 (no key attends), first {where}"]
