"""The Triton kernels of ``fused`` against the float64 oracle, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.conformance import CHECKS, DTYPES
from implementations.fused.cuda.tiles import (
    forward_tiles,
    key_gradient_tiles,
    query_gradient_tiles,
)
from tests.implementations.exact import case_of
from tests.implementations.interpreted_fused import CELLS_BY_DTYPE, QUICK_CHECKS, QUICK_DTYPES

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="needs triton: pip install 'mha-bench[triton]'",
    ),
]


def run_interpreted(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.implementations.interpreted_fused", *words],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    return run_interpreted()


@pytest.mark.parametrize(
    "name", [f"{n}, {d}" for d, names in CELLS_BY_DTYPE.items() for n in names]
)
def test_outputs_and_gradients_of_many_small_tiles_are_right(
    name: str, outcomes: dict[str, Any]
) -> None:
    assert outcomes["cells"][name]["problem"] == ""


@pytest.mark.parametrize("check", [f"{c}[{d}]" for d in QUICK_DTYPES for c in QUICK_CHECKS])
def test_the_quick_checks_of_the_battery_pass(check: str, outcomes: dict[str, Any]) -> None:
    assert outcomes["battery"][check] == ""


@pytest.mark.nightly
def test_the_whole_battery_passes_in_every_dtype() -> None:
    found = run_interpreted("battery")["battery"]
    assert set(found) == {f"{check.__name__}[{dtype}]" for dtype in DTYPES for check in CHECKS}
    assert {check: detail for check, detail in found.items() if detail} == {}


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
        ("causal, float32", "float32, forward 32x32w4s1, dkv 32x32w4s1, dq 32x32w4s1"),
    ],
)
def test_tiles_and_divisions_are_named(cell: str, text: str, outcomes: dict[str, Any]) -> None:
    assert text in outcomes["cells"][cell]["kernel"]


def test_every_kernel_takes_the_tiles_that_were_fastest(outcomes: dict[str, Any]) -> None:
    # The clock of the trial falls from call to call: the last candidate wins.
    config = case_of(seq_len=17, head_dim=16).config
    groups = (forward_tiles, key_gradient_tiles, query_gradient_tiles)
    assert outcomes["tried"] == [str(group(config)[-1]) for group in groups]
