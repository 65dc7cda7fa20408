"""The battery's own proof: every planted defect is caught, and no correct implementation is.

``find_evidence`` runs the whole battery on each planted defect until something fails.
``compare_rules`` shows why the bar is the a-priori bound: of the defects that rounding nearly hides
in bfloat16, which rule sees which, on which inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from harness.attention import Case, DType
from harness.conformance.battery import DTYPES, run_battery
from harness.conformance.planted import DEFECTS, SOUND, Sound, arithmetic
from harness.inputs.sets import make_inputs
from harness.measuring.modes import make_call
from harness.numerics.expected import error_of
from harness.numerics.judgement import judge, make_reference


@dataclass(frozen=True)
class Evidence:
    """What the battery says of one planted implementation at one dtype.

    Args:
        defect: What is wrong with it, in words; empty for a correct one.
        must_fail: Whether the defect is larger than what the dtype's rounding hides.
        caught_by: Name of the first check that failed; None where all passed.
        detail: That check's message.
    """

    name: str
    defect: str
    dtype: DType
    must_fail: bool
    caught_by: str | None
    detail: str

    @property
    def is_as_it_should_be(self) -> bool:
        """Whether a correct one passed, or a visible defect was caught."""
        return bool(self.caught_by) if self.must_fail else not (self.caught_by and not self.defect)


def find_evidence(
    planted: Iterable[type[Sound]] = (*SOUND, *DEFECTS),
    dtypes: Iterable[DType] = DTYPES,
    only: Iterable[str] = (),
) -> Iterator[Evidence]:
    """Run the battery on each, up to its first failure, one result per defect and dtype."""
    for kind in planted:
        for dtype in dtypes:
            yield _evidence_of(kind, dtype, tuple(only))


def _evidence_of(kind: type[Sound], dtype: DType, only: tuple[str, ...]) -> Evidence:
    results = run_battery(kind(), (dtype,), only=only, stop_at_first=True)
    failed = next((result for result in results if result.is_failure), None)
    return Evidence(
        name=kind.__name__,
        defect="" if kind in SOUND else (kind.__doc__ or "").partition("\n")[0],
        dtype=dtype,
        must_fail=kind not in SOUND and dtype in kind.seen_in,
        caught_by=failed.check if failed else None,
        detail=failed.detail if failed else "",
    )


@dataclass(frozen=True)
class RuleComparison:
    """Verdicts of three rules on one defect and distribution.

    Args:
        defect: What is wrong, in words; empty for a correct one.
        bound_share: Worst error as a multiple of what the bound allows; above 1 it is caught.
        naive_ratio: Worst error as a multiple of same-dtype naive attention's; above 2 the usual
            rule of kernel tests catches it.
        allclose: Whether torch.allclose at 1e-2 lets it pass.
    """

    name: str
    defect: str
    inputs: str
    bound_share: float
    naive_ratio: float
    allclose: bool


HARD_TO_SEE: tuple[type[Sound], ...] = (
    Sound,
    arithmetic.DropsLastKey,
    arithmetic.ScaleOffByOnePercent,
    arithmetic.RoundsScores,
    arithmetic.LowAccumulator,
)


def compare_rules(
    dtype: DType = DType.BFLOAT16,
    distributions: Iterable[str] = ("gaussian", "outlier_channel"),
) -> Iterator[RuleComparison]:
    """The bound beside two usual rules, on the defects that low precision nearly hides."""
    for kind in HARD_TO_SEE:
        for inputs in distributions:
            yield _compare(kind, dtype, inputs)


def _compare(kind: type[Sound], dtype: DType, distribution: str) -> RuleComparison:
    sizes = {"hidden_size": 256, "num_heads": 4, "seq_len": 512}
    case = Case.from_dict({**sizes, "dtype": dtype, "inputs": distribution})
    inputs = make_inputs(case)
    reference = make_reference(case, inputs)
    with torch.no_grad():
        call = make_call(kind(), case, inputs)
        output = call.named_outputs(call.run())["o"]
    measures = judge(reference, {"o": output}, kind().contract(case)).errors["o"]
    expected = reference.expected["o"]
    error = error_of(expected.part_of(output), expected)
    close = torch.allclose(expected.value + error, expected.value, rtol=1e-2, atol=1e-2)
    ratio, share = measures["ratio_to_naive"], measures["bound_share"]
    assert isinstance(ratio, float)
    assert isinstance(share, float)
    defect = "" if kind in SOUND else (kind.__doc__ or "").partition("\n")[0]
    return RuleComparison(kind.__name__, defect, distribution, share, ratio, close)
