"""A plain function as an implementation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.errors import InvalidValueError
from harness.interface import Case, DType, MaskTensors, Mode, dense_keep
from harness.plugins.function_plugin import implementation_from_function
from tests.implementations.exact import case_of, exact_attention, random_inputs


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def scaled(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, case: Case, masks: MaskTensors) -> Tensor:
    scores = q @ k.transpose(-1, -2) * case.config.scale
    keep = dense_keep(case.config, masks, case.device)
    if keep is not None:
        scores = scores.masked_fill(~keep, float("-inf"))
    return torch.softmax(scores, -1) @ v


def error(function: Any, case: Case, **declarations: Any) -> float:
    implementation = implementation_from_function(function, **declarations)
    assert implementation.unsupported_reasons(case) == ()
    inputs = random_inputs(case)
    output = implementation.prepare(case, inputs)()
    return float((output - exact_attention(case.config, inputs)).abs().max())


def test_a_function_of_q_k_v_is_an_implementation_of_its_own_name() -> None:
    assert implementation_from_function(plain).name == "plain"
    assert error(plain, case_of()) < 1e-6


def test_grouped_heads_reach_it_expanded_and_noted() -> None:
    case = case_of(num_kv_heads=2)
    assert error(plain, case) < 1e-6
    notes = implementation_from_function(plain).notes(case)
    assert notes == ("grouped heads expanded in the timed call",)


def test_a_scale_parameter_gets_the_scale_of_the_case() -> None:
    assert error(scaled, case_of(scale=0.9)) < 1e-6


def test_without_a_scale_parameter_another_scale_is_unsupported() -> None:
    reasons = implementation_from_function(plain).unsupported_reasons(case_of(scale=0.9))
    assert reasons == ("scale=0.9 (only 1/sqrt(head_dim): it takes no scale)",)


def test_case_and_masks_are_passed_where_it_takes_them() -> None:
    case = case_of("causal+keep:random", seq_len=9)
    inputs = random_inputs(case)
    assert inputs.masks.keep is not None
    inputs.masks.keep.diagonal(dim1=-2, dim2=-1).fill_(True)
    output = implementation_from_function(masked).prepare(case, inputs)()
    assert float((output - exact_attention(case.config, inputs)).abs().max()) < 1e-6


def test_a_function_without_masks_supports_none() -> None:
    reasons = implementation_from_function(plain).unsupported_reasons(case_of("causal"))
    assert reasons == ("mask=causal (needs causal; can do none)",)


def test_declared_limits_become_reasons() -> None:
    implementation = implementation_from_function(
        plain,
        mask_features={"causal"},
        max_head_dim=64,
        dtypes={DType.FLOAT32},
        modes=[Mode.FORWARD],
    )
    assert implementation.unsupported_reasons(case_of("causal")) == ()
    wide = case_of(head_dim=128, dtype="float16", mode="backward")
    assert implementation.unsupported_reasons(wide) == (
        "dtype=float16 (only float32)",
        "mode=backward (only forward)",
        "head_dim=128 (at most 64)",
    )


def test_declarations_of_one_do_not_reach_another() -> None:
    implementation_from_function(plain, max_head_dim=4)
    assert implementation_from_function(plain).unsupported_reasons(case_of()) == ()


def test_options_are_passed_on_each_call() -> None:
    def tuned(q: Tensor, k: Tensor, v: Tensor, *, block: int, scale: float = 1.0) -> Tensor:
        assert block == 64
        return scaled(q, k, v, scale)

    assert error(tuned, case_of(scale=0.3), options={"block": 64}) < 1e-6


def test_an_option_wins_over_what_the_case_offers() -> None:
    case = case_of(scale=0.3)
    inputs = random_inputs(case)
    implementation = implementation_from_function(scaled, options={"scale": 0.9})
    expected = exact_attention(replace(case.config, scale=0.9), inputs)
    assert float((implementation.prepare(case, inputs)() - expected).abs().max()) < 1e-6


def test_an_unknown_declaration_lists_the_known_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"got 'max_headdim'; choices: .*max_head_dim"):
        implementation_from_function(plain, max_headdim=64)


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (lambda q, k: q, {}, "too many positional arguments"),
        (lambda q, k, v, block: q, {}, "missing a required argument: 'block'"),
        (plain, {"block": 64}, "unexpected keyword argument 'block'"),
    ],
)
def test_a_function_of_the_wrong_form_is_refused_with_its_signature(
    function: Any, options: dict[str, int], words: str
) -> None:
    with pytest.raises(InvalidValueError, match=words):
        implementation_from_function(function, options=options)


def test_the_version_says_where_the_function_is_from() -> None:
    version = implementation_from_function(plain).version()
    assert version == f"torch {torch.__version__}, {__name__}"
