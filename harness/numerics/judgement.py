"""Is the output right, and how far off is it? The harness judges, by a bar of its own.

``make_reference`` computes the exact results of a case once, for all its implementations;
``judge`` measures outputs against them and gives reasons where they are wrong:

- the pattern of NaN, infinities and rows without keys must be that of the exact result;
- no element may be further off than rounding allows (``rounding``, ``layer_pass``);
- on gaussian inputs the RMS-relative error and the bias must be what rounding leaves on average,
  for the bound, made for the worst element, sees no small error that all elements share.

Long sequences are certified on a sample (``certification``); the measure ``certified`` says which.
With dropout the forward result is random: it gets no error, and the row says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from harness.attention import Case, Scope
from harness.errors import InvalidValueError
from harness.interface import Contract
from harness.numerics.certification import Certification, certification_of, too_large
from harness.numerics.expectations import expected_outputs
from harness.numerics.expected import Expected
from harness.numerics.gates import gate_faults
from harness.numerics.measures import Measure, measure
from harness.numerics.patterns import pattern_faults
from harness.tensors import AttentionInputs, Inputs, LayerInputs, torch_dtype

Errors: TypeAlias = dict[str, dict[str, Measure]]


@dataclass(frozen=True)
class Judgement:
    """What became of one implementation's outputs.

    Args:
        errors: Per output and measure; null with a ``reason`` where there is nothing to compare.
        reasons: Why the result is incorrect, in sentences; empty where it is right.
    """

    errors: Errors
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """Exact results of one case and one set of inputs.

    Args:
        expected: By output name.
        unjudged: Outputs that are not compared, with the reason.
        shapes: Of all outputs that the case has.
        fed_back: Some of those, compared in another call.
    """

    case: Case
    expected: Mapping[str, Expected]
    unjudged: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    fed_back: FedBack | None = None


@dataclass(frozen=True)
class FedBack:
    """Gradients of a layer's source that are certified in a call of their own.

    Args:
        inputs: The case's, with a gradient of the output that is zero but in some rows.
        reference: What comes of them.
    """

    inputs: LayerInputs
    reference: Reference


def make_reference(case: Case, inputs: Inputs) -> Reference:
    """Exact results for these inputs, shared by all implementations of the case."""
    shapes = output_shapes(case, inputs)
    if case.config.dropout_p:
        reason = f"dropout_p={case.config.dropout_p:g}: a random result has no exact value"
        return Reference(case, {}, dict.fromkeys(shapes, reason), shapes)
    certification = certification_of(case)
    fed = _fed_inputs(inputs, certification)
    expected = expected_outputs(case, inputs, certification, fed)
    fed_back = None
    if fed is not None:
        sources = {name: found for name, found in expected.items() if name in ("dx", "dx_kv")}
        expected = {name: found for name, found in expected.items() if name not in sources}
        fed_back = FedBack(fed, Reference(case, sources, {}, shapes))
    unjudged = {name: too_large(case, name) for name in shapes if name not in expected}
    return Reference(case, expected, unjudged, shapes, fed_back)


def _fed_inputs(inputs: Inputs, certification: Certification) -> LayerInputs | None:
    """Inputs whose gradient of the output is zero but in the certified rows; None if not needed."""
    if not isinstance(inputs, LayerInputs) or certification.keys is None:
        return None
    whole, rows = inputs.grad_output, certification.rows
    assert whole is not None
    assert rows is not None
    rows = rows.to(whole.device)
    in_rows = torch.zeros_like(whole).index_copy_(1, rows, whole.index_select(1, rows))
    return replace(inputs, grad_output=in_rows)


def output_shapes(case: Case, inputs: Inputs) -> dict[str, tuple[int, ...]]:
    """Outputs of a case by name: ``o`` or ``y``, and in backward modes a gradient per leaf."""
    whole = inputs.q if isinstance(inputs, AttentionInputs) else inputs.x
    shapes = {"y" if case.scope is Scope.LAYER else "o": tuple(whole.shape)}
    if case.mode.has_gradients:
        shapes |= {f"d{name}": tuple(leaf.shape) for name, leaf in inputs.leaves.items()}
    return shapes


def judge(reference: Reference, outputs: Mapping[str, Tensor], contract: Contract) -> Judgement:
    """Measure outputs against the exact ones, and say what is wrong with them.

    Args:
        outputs: By name: ``o``, ``lse``, ``dq``, ``dk``, ``dv``, or ``y``, ``dx``, ``dx_kv``,
            ``dw_qkv``, ``dw_o``.
        contract: How the implementation rounds inside.

    Raises:
        InvalidValueError: an output has a name that the case does not know.
    """
    errors: Errors = {}
    reasons: list[str] = []
    for name, output in outputs.items():
        if name not in reference.shapes and name not in reference.expected:
            known = sorted({*reference.shapes, *reference.expected})
            raise InvalidValueError("outputs", "an output of this case", name, known)
        measures, faults = _judge_one(reference, name, output, contract)
        errors[name] = measures
        reasons += [f"{name}: {fault}" for fault in faults]
    return Judgement(errors, tuple(reasons))


def _judge_one(
    reference: Reference, name: str, output: Tensor, contract: Contract
) -> tuple[dict[str, Measure], list[str]]:
    expected = reference.expected.get(name)
    shape = reference.shapes[name] if expected is None else expected.shape
    dtype = torch_dtype(reference.case.config.dtype) if expected is None else expected.dtype
    if tuple(output.shape) != shape:
        return _nothing(fault := f"shape {tuple(output.shape)} instead of {shape}"), [fault]
    if output.dtype != dtype:
        return _nothing(fault := f"dtype {output.dtype} instead of {dtype}"), [fault]
    if expected is None:
        reason = reference.unjudged[name]
        bad = int((~output.isfinite()).sum())
        faults = [f"{bad} elements are not finite"] if bad and _inputs_are_finite(reference) else []
        return _nothing(reason), faults
    got = expected.part_of(output)
    unit = reference.case.config.dtype.unit_roundoff
    bound = expected.bound(contract)
    measures = measure(got, expected, unit, bound)
    measures |= {"certified": expected.certified, "contract": contract.value}
    faults = pattern_faults(got, expected)
    return measures, faults + gate_faults(reference.case, name, measures, expected, contract)


def _inputs_are_finite(reference: Reference) -> bool:
    return reference.case.inputs != "nonfinite"


def _nothing(reason: str) -> dict[str, Measure]:
    names = ("max_abs", "rms_relative", "ratio_to_naive", "scaled_u", "bound_share")
    return {**dict.fromkeys(names), "reason": reason}
