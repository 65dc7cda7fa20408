"""Errors of the fused kernels beside SDPA's, both against float64, on inputs of several kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from harness.distributions import DISTRIBUTIONS
from harness.inputs.sets import make_inputs
from harness.interface import Case
from harness.numerics.judgement import judge, make_reference
from tests.benchmarks.fused.cells import Estimate
from tests.benchmarks.fused.plans import SDPA, THREE_PRODUCTS, Choice, attention_case
from tests.benchmarks.fused.verdicts import GEOMETRIC_MEAN, LARGEST, Verdict, mean_of

NAME, TITLE = "error", "Error against float64"
# Not these: relative errors of results below the normal numbers, of the same values in other
# memory, and of no numbers.
_DISTRIBUTIONS = [d for d in DISTRIBUTIONS if d not in ("subnormal", "strided", "nonfinite")]
_SHORT, _LONG = (8, 512, 96), [(8, 2048, 96), (32, 1024, 128), (8, 8192, 64)]
_LARGEST_RATIO = 1.2
_LARGEST_OF_THREE_PRODUCTS = 1.5e-5


@dataclass(frozen=True)
class ErrorLine:
    """Errors on one case.

    Args:
        rms: Root mean square of the error by that of the exact output.
        bound_share: Largest error as a share of the proven bound.
    """

    dtype: str
    implementation: str
    label: str
    rms: float
    rms_of_sdpa: float
    bound_share: float


def error_lines(choice: Choice) -> Iterator[ErrorLine]:
    """Every distribution on a short shape, normal inputs on long ones; full and causal."""
    shapes = [] if choice.is_quick else _LONG
    kinds = [(_SHORT, name) for name in _DISTRIBUTIONS] + [(s, "gaussian") for s in shapes]
    torch.set_num_threads(max(choice.threads))
    for dtype, (shape, inputs), mask in product(choice.dtypes, kinds, ("none", "causal")):
        case = attention_case(*shape, dtype, max(choice.threads), mask, inputs=inputs)
        heads, length, dim = shape
        label = f"{inputs} H{heads} S{length} D{dim} {'full' if mask == 'none' else mask}"
        if choice.has(label):
            yield from _lines(case, choice, label)


def _lines(case: Case, choice: Choice, label: str) -> Iterator[ErrorLine]:
    inputs, dtype = make_inputs(case), case.config.dtype.value
    reference = make_reference(case, inputs)
    measured: dict[str, Any] = {}
    with torch.no_grad():
        for name, rival in choice.rivals(dtype).items():
            output = rival.prepare(case, inputs)()
            measured[name] = judge(reference, {"o": output}, rival.contract(case)).errors["o"]
    for name, errors in measured.items():
        if name != SDPA:
            rms, share = errors["rms_relative"], errors["bound_share"]
            yield ErrorLine(dtype, name, label, rms, measured[SDPA]["rms_relative"], share)


def error_verdicts(lines: Sequence[ErrorLine]) -> Iterator[Verdict]:
    """By dtype and implementation: the ratio to SDPA's error, and the share of the bound."""
    for dtype, name in dict.fromkeys((line.dtype, line.implementation) for line in lines):
        own = [x for x in lines if (x.dtype, x.implementation) == (dtype, name)]
        ratios = {x.label: x.rms / x.rms_of_sdpa for x in own}
        if name == THREE_PRODUCTS:
            rms = {x.label: x.rms for x in own}
            yield _largest(dtype, f"RMS error of {name}", rms, _LARGEST_OF_THREE_PRODUCTS)
        else:
            figure = f"RMS error, {name} / {SDPA}"
            mean = mean_of([_exactly(ratio) for ratio in ratios.values()])
            yield Verdict(NAME, dtype, figure, GEOMETRIC_MEAN, mean, None, is_limit=True)
            yield _largest(dtype, figure, ratios, _LARGEST_RATIO)
        shares = {x.label: x.bound_share for x in own}
        yield _largest(dtype, f"share of the bound, {name}", shares, 1.0)


def _largest(dtype: str, figure: str, by_label: dict[str, float], target: float) -> Verdict:
    where = max(by_label, key=by_label.__getitem__)
    found = _exactly(by_label[where])
    return Verdict(NAME, dtype, figure, LARGEST, found, target, where, is_limit=True)


def _exactly(value: float) -> Estimate:
    return Estimate(value, value, value, 1, 0.0)
