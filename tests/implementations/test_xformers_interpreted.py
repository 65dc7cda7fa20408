"""The xformers adapter against xformers' real split-K kernel, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.implementations.interpreted import printed_by
from tests.implementations.interpreted_splitk import CASES

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(
        any(importlib.util.find_spec(package) is None for package in ("xformers", "triton")),
        reason="needs xformers and triton: pip install 'mha-bench[xformers,triton]'",
    ),
]

REFUSED = {
    "bias and split": "Additive attention bias is not supported with split-k > 1",
    "float32": "dtype=float32 (only bfloat16, float16)",
    "head_dim 24": "head_dim=24 (only 16, 32, 64, 128, 256, 512)",
}
DENSE = {name for name, (mask, _, _) in CASES.items() if mask != "none" and name not in REFUSED}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    return printed_by("interpreted_splitk")


@pytest.mark.parametrize("name", sorted(set(CASES) - set(REFUSED)))
def test_the_real_kernel_gives_the_float64_result_through_the_adapter(
    name: str, outcomes: dict[str, Any]
) -> None:
    outcome = outcomes[name]
    assert outcome["reasons"] == []
    assert outcome["error"] < 2e-3  # float16 outputs of size 1 are 1e-3 apart
    axes = {"seq_len": 13, "head_dim": 16} | CASES[name][2]
    assert outcome["shape"] == [3, 4, axes["seq_len"], axes["head_dim"]]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_the_kernel_can_t_do_is_refused_beforehand(
    name: str, outcomes: dict[str, Any]
) -> None:
    assert any(REFUSED[name] in reason for reason in outcomes[name]["reasons"])


def test_the_kernel_and_the_work_beside_it_are_named(outcomes: dict[str, Any]) -> None:
    assert outcomes["split"]["kernel"] == "xformers:triton_splitK4"
    assert outcomes["grouped"]["notes"] == []
    assert all("dense bias" in outcomes[name]["notes"][0] for name in DENSE)
