"""What every output of a case should be, as far as it is certified, with its yardstick."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from harness.attention import Case
from harness.numerics.attention_pass import run_attention_pass
from harness.numerics.certification import Certification
from harness.numerics.expected import Expected, error_of
from harness.numerics.expected_attention import expected_attention, expected_key_gradients
from harness.numerics.expected_layer import expected_layer
from harness.numerics.layer_part import parts_of_layer
from harness.numerics.layer_pass import run_layer_pass
from harness.numerics.problem import Problem, attention_problem, on_cpu
from harness.numerics.yardstick import yardstick_outputs
from harness.tensors import Inputs, LayerInputs


def expected_outputs(
    case: Case, inputs: Inputs, certification: Certification, fed: LayerInputs | None = None
) -> dict[str, Expected]:
    """Expected outputs by name, of what is certified.

    Args:
        fed: Inputs whose gradient of the output is zero but in the certified rows: what the
            gradients of a layer's source are of, where they can be certified in no other way.
    """
    rows = certification.rows
    if isinstance(inputs, LayerInputs):
        problem, layer = run_layer_pass(case, fed or inputs, rows, certification.keys)
        expected = expected_layer(case, inputs, layer, rows)
        expected = _with_yardstick(case, inputs, problem, rows, expected)
        for part_case, part, part_problem, found in parts_of_layer(case, inputs, certification):
            expected |= _with_yardstick(part_case, part, part_problem, None, found)
        return expected
    problem = attention_problem(case.config, inputs)
    d_output = None if inputs.grad_output is None else on_cpu(inputs.grad_output)
    done = run_attention_pass(problem, case.config.dtype, rows, d_output)
    expected = expected_attention(case, inputs, done, rows)
    expected = _with_yardstick(case, inputs, problem, rows, expected)
    if certification.slices and d_output is not None:
        expected |= expected_key_gradients(case, inputs, problem, d_output, certification.slices)
    return expected


def _with_yardstick(
    case: Case,
    inputs: Inputs,
    problem: Problem,
    rows: Tensor | None,
    expected: dict[str, Expected],
) -> dict[str, Expected]:
    """Adds the largest error of plain attention in the same dtype, where that can be had."""
    for name, output in yardstick_outputs(case.config, inputs, problem, rows).items():
        if name not in expected:
            continue
        output = output.cpu().reshape(expected[name].value.shape)
        error = error_of(output, expected[name]).abs()
        largest = float(error.max()) if error.numel() else 0.0
        expected[name] = replace(expected[name], yardstick=largest)
    return expected
