"""How far a result is from the exact one: measures of error that no NaN slips through.

Errors are taken in float64, slab by slab of rows, so that all measures of a slab are computed while
it is in the cache. A maximum is NaN as soon as one element is, and every gate asks ``not (error <=
bound)``, so that NaN fails. Where the exact result itself is not finite, nothing is measured, for
``patterns`` compares there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.numerics.expected import Expected, masked_error

Measure = float | int | str | None

_SLAB_ELEMENTS = 1 << 16
_ULP_SAMPLE = 1 << 17  # elements that the percentile of ULP distances is read from, about


@dataclass(frozen=True)
class _Slab:
    """Measures of some rows; the tensors have one number per row."""

    largest: float
    largest_scaled: float
    largest_share: float
    worst: int
    ulp_max: int
    ulp_sample: Tensor
    products: Tensor  # of result and exact value, and of the result with itself
    squared_error: Tensor
    squared_exact: Tensor
    mean_scaled: Tensor
    along_exact: Tensor
    size_of_exact: Tensor


def measure(got: Tensor, expected: Expected, unit: float, bound: Tensor) -> dict[str, Measure]:
    """All measures of one output; ``unit`` is the unit roundoff of its dtype."""
    if not expected.value.numel():
        return {"max_abs": 0.0, "rms_relative": 0.0, "bound_share": 0.0}
    slabs = list(_slabs(got, expected, bound))
    shares = np.array([slab.largest_share for slab in slabs])
    worst = slabs[int(shares.argmax())].worst  # numpy's argmax finds NaN first, as torch's does
    largest = _maximum(slab.largest for slab in slabs)
    squared_error = torch.cat([slab.squared_error for slab in slabs])
    squared_exact = torch.cat([slab.squared_exact for slab in slabs])
    error_norm, exact_norm = math.sqrt(squared_error.sum()), math.sqrt(squared_exact.sum())
    rms_relative = _quotient(error_norm, exact_norm)
    return {
        "max_abs": largest,
        "rms_relative": rms_relative,
        "rms_relative_u": rms_relative / unit,
        "scaled_u": _maximum(slab.largest_scaled for slab in slabs) / unit,
        **_bias(torch.cat([slab.mean_scaled for slab in slabs]) / unit),
        **_shrink(slabs, unit, expected),
        "bound_share": float(shares.max()),  # NaN wins
        "worst_at": expected.element(worst),
        "worst_got": float(got.flatten()[worst]),
        "worst_expected": float(expected.value.flatten()[worst]),
        "ratio_to_naive": _ratio_to_naive(largest, expected.yardstick),
        "cosine": _cosine(slabs, exact_norm),
        **_ulp(slabs),
        **_worst_part("head", expected.head_axes, squared_error, squared_exact, expected),
        **_worst_part("row", expected.row_axes, squared_error, squared_exact, expected),
    }


def _slabs(got: Tensor, expected: Expected, bound: Tensor) -> Iterator[_Slab]:
    shape = expected.value.shape
    width = shape[-1]

    def rows_of(tensor: Tensor) -> Tensor:
        return tensor.expand(shape).reshape(-1, width)

    got, value, scale, bound = map(rows_of, (got, expected.value, expected.scaled, bound))
    may_be_nan = None if expected.may_be_nan is None else rows_of(expected.may_be_nan)
    num_rows = max(1, _SLAB_ELEMENTS // width)
    stride = value.numel() // _ULP_SAMPLE * 2 + 1  # odd: goes through all channels
    for start in range(0, len(value), num_rows):
        span = slice(start, start + num_rows)
        policy = None if may_be_nan is None else may_be_nan[span]
        yield _measure_slab(
            got[span], value[span], scale[span], bound[span], policy, start * width, stride
        )


def _measure_slab(
    got: Tensor,
    value: Tensor,
    scale: Tensor,
    bound: Tensor,
    may_be_nan: Tensor | None,
    first: int,
    stride: int,
) -> _Slab:
    finite = bool(value.isfinite().all())
    error = masked_error(got, value, may_be_nan)
    exact = value if finite else torch.where(value.isfinite(), value, 0.0)
    size = error.abs()
    scaled = _ratio(error, scale.double() if finite else scale.double().nan_to_num())
    share = _ratio(size, bound.double() if finite else bound.double().nan_to_num(posinf=math.inf))
    worst = int(share.argmax())
    steps = _ulp_steps(got, value, finite)
    result = exact + error
    return _Slab(
        largest=float(size.max()),
        largest_scaled=float(scaled.abs().max()),
        largest_share=float(share.flatten()[worst]),
        worst=first + worst,
        ulp_max=int(steps.max()) if steps.numel() else 0,
        ulp_sample=steps[::stride],
        products=torch.stack(((result * exact).sum(), (result * result).sum())),
        squared_error=error.square().sum(dim=-1),
        squared_exact=exact.square().sum(dim=-1),
        mean_scaled=scaled.mean(dim=-1),
        along_exact=(error * exact.sign()).mean(dim=-1),
        size_of_exact=exact.abs().mean(dim=-1),
    )


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator with 0 / 0 = 0: no error needs no allowance."""
    return torch.where(numerator == 0, 0.0, numerator / denominator)


def _quotient(numerator: float, denominator: float) -> float:
    return 0.0 if numerator == 0 else numerator / denominator if denominator else math.inf


def _maximum(values: Iterator[float]) -> float:
    return float(np.max(list(values)))  # NaN wins


def _bias(of_rows_u: Tensor) -> dict[str, Measure]:
    """Mean signed error, and its standard error: a row shares its roundings, rows are apart."""
    return {"bias_u": float(of_rows_u.mean()), "bias_error_u": _standard_error(of_rows_u)}


def _standard_error(of_rows: Tensor) -> float | None:
    return float(of_rows.std()) / math.sqrt(len(of_rows)) if len(of_rows) > 1 else None


def _shrink(slabs: list[_Slab], unit: float, expected: Expected) -> dict[str, Measure]:
    """Mean error along the exact value, relative to its mean size: negative towards zero.

    Outputs that average to 0 hide a rounding towards zero from ``bias_u``, but not from this.
    """
    size = float(torch.cat([slab.size_of_exact for slab in slabs]).mean())
    if not size:
        return {"shrink_u": None, "shrink_error_u": None}
    of_rows = torch.cat([slab.along_exact for slab in slabs]) / (size * unit)
    return {"shrink_u": float(of_rows.mean()), "shrink_error_u": _standard_error(of_rows)}


def _ratio_to_naive(largest: float, yardstick: float | None) -> float | None:
    if yardstick is None or not math.isfinite(yardstick) or yardstick == 0:
        return None
    return largest / yardstick


def _cosine(slabs: list[_Slab], exact_norm: float) -> float | None:
    with_exact, with_itself = torch.stack([slab.products for slab in slabs]).sum(dim=0).tolist()
    lengths = math.sqrt(with_itself) * exact_norm
    return with_exact / lengths if lengths else None


def _ulp(slabs: list[_Slab]) -> dict[str, Measure]:
    sample = torch.cat([slab.ulp_sample for slab in slabs])
    if not sample.numel():
        return {"ulp_max": None, "ulp_p99": None}
    p99 = int(sample.kthvalue(math.ceil(0.99 * sample.numel())).values)
    return {"ulp_max": max(slab.ulp_max for slab in slabs), "ulp_p99": p99}


def _ulp_steps(got: Tensor, value: Tensor, finite: bool) -> Tensor:
    """Distances in representable numbers from the exact value rounded to the output's dtype."""
    steps = (ordinal(got) - ordinal(value.to(got.dtype))).abs_().flatten()
    usable = got.isfinite() if finite else got.isfinite() & value.isfinite()
    return steps if bool(usable.all()) else steps[usable.flatten()]


def ordinal(tensor: Tensor) -> Tensor:
    """Integers in the order of the floats, neighbours one apart, both zeros equal."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.contiguous().view(kind)
    # Negative floats count down from the lowest integer: mirror them.
    mirrored = bits ^ ((bits >> (8 * tensor.element_size() - 1)) & torch.iinfo(kind).max)
    return mirrored.long() + (bits < 0)


def _worst_part(
    name: str,
    axes: tuple[int, ...],
    squared_error: Tensor,
    squared_exact: Tensor,
    expected: Expected,
) -> dict[str, Measure]:
    """RMS-relative error of the worst head or row, and which one it is."""
    if not axes:
        return {}
    leading = expected.value.shape[:-1]
    over = tuple(axis for axis in range(len(leading)) if axis not in axes)
    squares = [t.reshape(leading) for t in (squared_error, squared_exact)]
    sizes = _ratio(*(s.sum(over) if over else s for s in squares)).sqrt()
    worst = np.unravel_index(int(sizes.argmax()), tuple(sizes.shape))
    where = expected.location(tuple(int(i) for i in worst), axes)
    return {f"worst_{name}": where, f"worst_{name}_rms_relative": float(sizes.max())}
