"""The bar for an output's error: when is it wrong, and not just rounded?

Element by element the a-priori bound decides. On plain gaussian inputs two averages are gated as
well, since the bound, made for the worst element, sees no small error that all elements share: the
RMS-relative error, and the mean error, both signed (bias) and along the exact value (shrink).
"""

from __future__ import annotations

import math

from harness.attention import Case, DType, Scope
from harness.distributions import GAUSSIAN
from harness.interface import Contract
from harness.numerics.expected import Expected
from harness.numerics.measures import Measure
from harness.numerics.rounding import factor_rounding, units

# The bound is validated on the CPU; elsewhere it gates with slack until it is validated there.
_BOUND_SLACK = {"cpu": 1.0}
_BOUND_SLACK_ELSEWHERE = 4.0

_LOW = frozenset({DType.FLOAT16, DType.BFLOAT16})

# RMS-relative error in u: (float32 and float64, low precision). Correct CPU kernels show 7-10 and
# 0.4-1.4 at scope attention, 9-14 and 0.9-1.6 at scope layer.
_RMS_GATES_U = {
    (Scope.ATTENTION, "output"): (20.0, 1.5),
    (Scope.ATTENTION, "gradient"): (30.0, 3.0),
    (Scope.LAYER, "output"): (40.0, 2.5),
    (Scope.LAYER, "gradient"): (60.0, 4.0),
}
# Scores and probabilities rounded to low precision leave more; correct kernels show 1.2 to 1.7.
_MATERIALISED_FACTOR = 2.0
# Gradients that sum over rows may be kept in the inputs' dtype from block to block: torch's CPU
# kernel does so after 256 rows, autograd through chunks of rows after each chunk. n additions that
# round by 0.4 u each leave up to 0.4 u sqrt(n) and what was there before: seen 1.0 u after 4 and
# 1.3 u after 8. The gates hold for 2048 rows, 16 blocks of 128, and grow with the root beyond.
_ROWS_OF_GATES = 2048
# Mean errors in u, likewise. A scale rounded to float32, twice where queries and keys get its root
# each, shrinks or stretches all outputs of float32 by up to 2 u.
_MEAN_GATES_U = {"bias": (0.2, 0.25), "shrink": (3.0, 0.25)}
_FEWEST_AVERAGED = 512  # elements; an average of fewer strays by chance


def gate_faults(
    case: Case, name: str, measures: dict[str, Measure], expected: Expected, contract: Contract
) -> list[str]:
    """Reasons, in sentences with value and limit, why an output is wrong; none if it is right."""
    faults = []
    slack = _BOUND_SLACK.get(case.device.partition(":")[0], _BOUND_SLACK_ELSEWHERE)
    if not _number(measures, "bound_share") <= slack:
        faults.append(_beyond_bound(measures))
    enough = expected.value.numel() >= _FEWEST_AVERAGED
    if _is_plain_gaussian(case) and name != "lse" and enough:
        faults += _average_faults(case, name, measures, expected, contract)
    return faults


def _number(measures: dict[str, Measure], name: str) -> float:
    value = measures.get(name)
    return float(value) if isinstance(value, (int, float)) else math.nan


def _beyond_bound(measures: dict[str, Measure]) -> str:
    return (
        f"off by {_number(measures, 'bound_share'):.3g} times what rounding allows at "
        f"{measures['worst_at']}: got {measures['worst_got']:.6g}, "
        f"expected {measures['worst_expected']:.6g}"
    )


def _is_plain_gaussian(case: Case) -> bool:
    """Whether the gates on averages hold: a bias or another scale makes scores of another size."""
    c = case.config
    return case.inputs == GAUSSIAN and c.mask.bias is None and c.has_default_scale


def _is_cancelled(expected: Expected) -> bool:
    """Whether the result is what cancelling left over, so that its own size is no measure."""
    size, terms = float(expected.value.norm()), float(expected.scaled.double().norm())
    return size < 1e-4 * terms


def _average_faults(
    case: Case, name: str, measures: dict[str, Measure], expected: Expected, contract: Contract
) -> list[str]:
    low, unit_u = _gate_unit(case, contract)
    kind = "output" if name in ("o", "y") else "gradient"
    rms_gate = _RMS_GATES_U[case.scope, kind][low] * unit_u
    if low and contract is Contract.MATERIALISED:
        rms_gate *= _MATERIALISED_FACTOR
    if kind == "gradient" and name != "dq":
        rms_gate *= math.sqrt(max(1.0, case.config.seq_len / _ROWS_OF_GATES))
    faults = []
    rms = _number(measures, "rms_relative_u")
    if not rms <= rms_gate and not _is_cancelled(expected):
        faults.append(
            f"RMS-relative error {rms:.3g} u (at most {rms_gate:.3g} u on gaussian inputs)"
        )
    if name == "o":
        faults += _mean_faults(measures, low, unit_u)
    return faults


def _mean_faults(measures: dict[str, Measure], low: bool, unit_u: float) -> list[str]:
    faults = []
    for name, gates in _MEAN_GATES_U.items():
        mean, spread = _number(measures, f"{name}_u"), measures.get(f"{name}_error_u")
        if not isinstance(spread, float):
            continue
        limit = gates[low] * unit_u + 4 * spread  # the mean of few rows strays by chance
        if not abs(mean) <= limit:
            faults.append(f"{name} {mean:.3g} u (at most {limit:.2g} u on gaussian inputs)")
    return faults


def _gate_unit(case: Case, contract: Contract) -> tuple[bool, float]:
    """Whether the gates of low precision hold, and the size in u of the unit that they are in."""
    factors = factor_rounding(units(case.config.dtype), contract)
    if factors:
        return True, factors / case.config.dtype.unit_roundoff
    return case.config.dtype in _LOW, 1.0
