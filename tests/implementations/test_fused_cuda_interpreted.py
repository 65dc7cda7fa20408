"""The Triton kernels of ``fused`` against the float64 oracle, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from harness.conformance import CHECKS, DTYPES
from implementations.fused.cuda.tiles import (
    forward_tiles,
    key_gradient_tiles,
    query_gradient_tiles,
)
from tests.implementations.exact import case_of
from tests.implementations.interpreted import printed_by
from tests.implementations.interpreted_fused import (
    CELLS_BY_DESCRIPTORS,
    CELLS_BY_DTYPE,
    LARGE_TILES,
    QUICK_CHECKS,
    QUICK_DTYPES,
    SMALL_TILES,
)

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="needs triton: pip install 'mha-bench[triton]'",
    ),
]

# The kernels have neither dropout nor float64.
NOTHING_TO_TEST = {"check_dropout", "check_gradients_by_differences"}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    return printed_by("interpreted_fused")


@pytest.mark.parametrize(
    "name", [f"{n}, {d}" for d, names in CELLS_BY_DTYPE.items() for n in names]
)
def test_outputs_and_gradients_of_many_small_tiles_are_right(
    name: str, outcomes: dict[str, Any]
) -> None:
    assert outcomes["cells"][name]["problem"] == ""


@pytest.mark.parametrize("check", [f"{c}[{d}]" for d in QUICK_DTYPES for c in QUICK_CHECKS])
def test_the_quick_checks_of_the_battery_pass(check: str, outcomes: dict[str, Any]) -> None:
    assert outcomes["battery"][check] == "passed"


@pytest.mark.parametrize(
    "name", [f"{n}, {d}" for d, names in CELLS_BY_DESCRIPTORS.items() for n in names]
)
def test_tiles_loaded_by_descriptors_are_right(name: str, outcomes: dict[str, Any]) -> None:
    assert outcomes["cells by descriptors"][name]["problem"] == ""


@pytest.mark.nightly
@pytest.mark.parametrize("tiles", [SMALL_TILES, LARGE_TILES, f"{LARGE_TILES}d"])
def test_the_whole_battery_passes_in_every_dtype(tiles: str) -> None:
    found = printed_by("interpreted_fused", tiles)["battery"]
    assert set(found) == {f"{check.__name__}[{dtype}]" for dtype in DTYPES for check in CHECKS}
    others = {name: became for name, became in found.items() if became != "passed"}
    skipped = {name for name, became in others.items() if became.startswith("skipped: ")}
    assert skipped == {f"{check}[{dtype}]" for dtype in DTYPES for check in NOTHING_TO_TEST}
    assert set(others) == skipped, others


@pytest.mark.parametrize(
    "what",
    [
        "keys after the triangle",
        "keys after it, bottom right",
        "keys before the window",
        "queries before the keys",
    ],
)
def test_tiles_without_a_visible_pair_are_never_read(what: str, outcomes: dict[str, Any]) -> None:
    assert outcomes["skipped"][what]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("one query, float32", "4 heads in a tile, keys in 4 parts"),
        ("few queries, float16", "4 heads in a tile, keys in 2 parts"),
        ("few queries, gradients, float32", "keys in 2 parts, dkv 32x32w4s1, dq 32x32w4s1"),
        ("parts without a visible key, float32", "keys in 4 parts"),
        ("NaN in divided keys' queries, float32", "keys in 4 parts"),
        ("causal, float32", "float32, forward 32x32w4s1, dkv 32x32w4s1, dq 32x32w4s1"),
    ],
)
def test_tiles_and_divisions_are_named(cell: str, text: str, outcomes: dict[str, Any]) -> None:
    assert text in outcomes["cells"][cell]["kernel"]


@pytest.mark.parametrize("with_descriptors", [False, True])
def test_every_kernel_takes_the_tiles_that_were_fastest(
    with_descriptors: bool, outcomes: dict[str, Any]
) -> None:
    # The clock of the trial falls from call to call: the last candidate wins, with descriptors the
    # last of all, which is the same tiles by pointers.
    config = case_of(seq_len=17, head_dim=16).config
    groups = (forward_tiles, key_gradient_tiles, query_gradient_tiles)
    expected = [str(group(config)[-1]) for group in groups]
    assert outcomes["tried"][with_descriptors] == expected


def test_torch_s_own_check_of_an_operator_passes(outcomes: dict[str, Any]) -> None:
    checks = outcomes["operator"]["checks"]
    assert checks
    assert set(checks.values()) == {"SUCCESS"}


def test_torch_compile_sees_one_operator_with_the_eager_result_and_gradients(
    outcomes: dict[str, Any],
) -> None:
    assert outcomes["operator"]["equal"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (
            "few queries, float32",
            "forward 32x32w4s1d, 4 heads in a tile, keys in 2 parts, d: loads",
        ),
        ("causal, float16", "dkv 32x32w4s1d, dq 32x32w4s1d, d: loads by tensor descriptors"),
        ("all parts, float16", "dq 32x32w4s1, no tensor descriptors of q, k, v: stride of "),
    ],
)
def test_loads_are_named_as_they_ran(cell: str, text: str, outcomes: dict[str, Any]) -> None:
    assert text in outcomes["cells by descriptors"][cell]["kernel"]
