"""The Triton kernels of ``fused`` on CPU tensors, in Triton's interpreter: a process of its own.

The interpreter must be asked for before triton is imported. Prints one JSON object: what became of
each part by name.

    TRITON_INTERPRET=1 python -m tests.implementations.interpreted_fused [TILES]

With the name of tiles it is the whole conformance battery at its own sizes, which takes minutes,
and each check is told with its time as it comes; else a part of it, and cells in which small tiles
meet every mask.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from harness.attention import DType
from harness.conformance import DTYPES, CheckFailure, CheckResult, Subject, run_battery
from harness.inputs.sets import make_inputs
from harness.interface import AttentionInputs, Case, Mode
from implementations.fused.cuda import FusedOnCuda
from implementations.fused.cuda.operators import fused_attention_triton, text_of
from implementations.fused.cuda.tuning import try_tiles

SMALL_TILES = "32x32w4s1"
LARGE_TILES = "128x128w8s3"  # the interpreter takes its time by the tile


class Interpreted(FusedOnCuda):
    """The implementation as it is, on CPU tensors.

    Args:
        multiprocessors: Of the card that it believes to have.
    """

    devices = frozenset({"cpu"})

    def __init__(self, tiles: str = SMALL_TILES, multiprocessors: int = 1) -> None:
        super().__init__(tiles=tiles)
        self._multiprocessors = multiprocessors

    def device_reasons(self, case: Case) -> Iterable[str]:
        return ()

    def has_descriptors(self) -> bool:
        return True

    def multiprocessors(self) -> int:
        return self._multiprocessors


SMALL = {"hidden_size": 32, "num_heads": 2, "head_dim": 16}
BOTH = {**SMALL, "mode": "backward"}
GROUPED = {
    "hidden_size": 80,
    "num_heads": 4,
    "num_kv_heads": 2,
    "batch_size": 2,
    "mode": "backward",
}
ONE_KEY_HEAD = {"hidden_size": 64, "num_heads": 4, "num_kv_heads": 1}
ALL_PARTS = "bottom_right+window:30+padding:0.3+keep:random+bias:random"
CELLS: dict[str, dict[str, Any]] = {
    "no mask": {**BOTH, "seq_len": 70},
    "causal": {**BOTH, "seq_len": 97, "mask": "causal"},
    "top left, more queries": {**BOTH, "seq_len": 97, "kv_seq_len": 40, "mask": "top_left"},
    "bottom right, more keys": {**BOTH, "seq_len": 40, "kv_seq_len": 97, "mask": "bottom_right"},
    "rows without keys": {**BOTH, "seq_len": 70, "kv_seq_len": 5, "mask": "bottom_right"},
    "causal window": {**BOTH, "seq_len": 130, "mask": "causal+window:33"},
    "window to both sides": {**BOTH, "seq_len": 97, "mask": "window:20"},
    "all parts": {**GROUPED, "seq_len": 35, "kv_seq_len": 66, "mask": ALL_PARTS},
    "grouped heads": {**GROUPED, "seq_len": 45, "mask": "causal"},
    "scale below 0": {**BOTH, "seq_len": 40, "scale": -0.3, "mask": "causal"},
    "scale 0": {**BOTH, "seq_len": 40, "scale": 0.0, "mask": "padding:0.4"},
    "head_dim 200": {"hidden_size": 200, "num_heads": 1, "seq_len": 33, "mode": "backward"},
    "head_dim 256": {"hidden_size": 256, "num_heads": 1, "seq_len": 33, "mode": "backward"},
    "one query": {**ONE_KEY_HEAD, "seq_len": 1, "kv_seq_len": 1100, "batch_size": 2},
    "few queries": {**ONE_KEY_HEAD, "seq_len": 3, "kv_seq_len": 601, "mask": "bottom_right"},
    "few queries, gradients": {**BOTH, "seq_len": 3, "kv_seq_len": 601, "mask": ALL_PARTS},
    "parts without a visible key": {
        **BOTH,
        "seq_len": 3,
        "kv_seq_len": 1100,
        "mask": "bottom_right+window:20",
    },
    "NaN in divided keys' queries": {
        **ONE_KEY_HEAD,
        "seq_len": 3,
        "kv_seq_len": 1100,
        "inputs": "nonfinite",
    },
}
CELLS_BY_DTYPE = {
    "float32": tuple(CELLS),
    "float16": ("causal", "window to both sides", "all parts", "grouped heads", "few queries"),
    "bfloat16": ("causal window", "all parts", "one query"),  # rounded as a card does
}
CELLS_BY_DESCRIPTORS = {
    "float32": ("rows without keys", "window to both sides", "all parts", "few queries"),
    "float16": ("causal", "all parts"),
    "bfloat16": ("causal window",),
}
QUICK_CHECKS = (
    "check_reasons",
    "check_sizes_that_all_differ",
    "check_grouped_heads",
    "check_scale",
    "check_head_dims",
    "check_empty_sizes",
    "check_rows_without_keys",
    "check_garbage_below_masks",
    "check_additive_masks",
    "check_score_range",
    "check_strides",
    "check_log_sum_exp",
    "check_keeps_nothing",
    "check_same_twice",
    "check_nan_in_nan_out",
    "check_modes_agree",
)
QUICK_DTYPES = (DType.FLOAT32, DType.FLOAT16)
SIDE_BY_SIDE = 8  # multiprocessors: long keys of few queries are divided among programs


def outcomes_of_cells(
    cells: Mapping[str, Iterable[str]], tiles: str = SMALL_TILES
) -> dict[str, dict[str, str]]:
    """Kernel and problem, "" for none, of every dtype's cells."""
    found = {}
    implementation = Interpreted(tiles, multiprocessors=SIDE_BY_SIDE)
    for dtype, names in cells.items():
        subject = Subject(implementation, DType(dtype))
        for name in names:
            case = subject.case(**CELLS[name])
            problem = ""
            try:
                subject.require_right(case)
            except CheckFailure as failure:
                problem = str(failure)
            kernel = implementation.kernel(case, make_inputs(case))
            found[f"{name}, {dtype}"] = {"problem": problem, "kernel": kernel}
    return found


def skipped() -> dict[str, bool]:
    """Whether tiles without visible pairs are left alone: NaN in them would spread."""
    return {
        "keys after the triangle": _unspoiled(slice(0, 32), keys=slice(32, 64), mask="causal"),
        "keys after it, bottom right": _unspoiled(
            slice(0, 32), keys=slice(64, 96), mask="bottom_right", kv_seq_len=96
        ),
        "keys before the window": _unspoiled(
            slice(64, 96), keys=slice(0, 32), mask="causal+window:16", seq_len=96
        ),
        "queries before the keys": _unspoiled_gradients(slice(32, 64), queries=slice(0, 32)),
    }


def _inputs(**axes: Any) -> tuple[Case, AttentionInputs]:
    case = Subject(Interpreted(), DType.FLOAT32).case(**{**SMALL, "seq_len": 64, **axes})
    inputs = make_inputs(case)
    assert isinstance(inputs, AttentionInputs)
    return case, inputs


def _unspoiled(rows: slice, keys: slice, **axes: Any) -> bool:
    case, inputs = _inputs(**axes)
    inputs.k[:, :, keys], inputs.v[:, :, keys] = math.nan, math.nan
    output = Interpreted().prepare(case, inputs)()
    return bool(output[:, :, rows].isfinite().all()) and not bool(output.isfinite().all())


def _unspoiled_gradients(keys: slice, queries: slice) -> bool:
    case, inputs = _inputs(mask="causal", mode=Mode.BACKWARD)
    inputs.q[:, :, queries] = math.nan
    leaves = [x.requires_grad_() for x in inputs.leaves.values()]
    output = Interpreted().prepare(case, inputs)()
    _, d_k, d_v = torch.autograd.grad(output, leaves, inputs.grad_output)
    return all(bool(x[:, :, keys].isfinite().all()) and bool(x.isnan().any()) for x in (d_k, d_v))


def tried(with_descriptors: bool) -> list[str]:
    """The tiles that are taken where each kernel's last candidate is the fastest."""
    case, inputs = _inputs(seq_len=17, mask="keep:random+bias:random")
    plan = Interpreted().plan(case, inputs.masks)
    times = iter(range(100, 0, -1))

    def falling(call: Any) -> float:
        call()
        return float(next(times))

    tiles = try_tiles(plan, True, falling, with_descriptors, device="cpu")
    return [str(tiles.forward), str(tiles.key_gradients), str(tiles.query_gradients)]


def as_operator() -> dict[str, Any]:
    """What torch's own check says, and whether a compiled call gives what the eager one does."""
    axes = {**GROUPED, "seq_len": 19, "kv_seq_len": 23, "mask": ALL_PARTS}
    case, inputs = _inputs(**axes)
    implementation = Interpreted()
    text = text_of(implementation.plan(case, inputs.masks))
    leaves = [x.requires_grad_() for x in inputs.leaves.values()]
    masks = (inputs.masks.key_padding, inputs.masks.keep, inputs.masks.bias)
    checks = torch.library.opcheck(
        fused_attention_triton, (*leaves, *masks, text), raise_exception=False
    )
    eager = implementation.make_attend(case, inputs.masks)
    compiled = torch.compile(eager, backend="aot_eager", fullgraph=True)
    pairs = [_with_gradients(call, leaves, inputs.grad_output) for call in (eager, compiled)]
    return {"checks": checks, "equal": all(map(torch.equal, *pairs))}


def _with_gradients(call: Any, leaves: list[torch.Tensor], grad: Any) -> tuple[torch.Tensor, ...]:
    output = call(*leaves)
    return (output.detach(), *torch.autograd.grad(output, leaves, grad))


def battery(
    implementation: Interpreted, dtypes: Iterable[DType], only: Iterable[str] = ()
) -> dict[str, str]:
    """What became of each check and dtype of the conformance battery: "passed", or how and why not.

    Tells of each on the standard error as it comes.
    """
    results = run_battery(implementation, dtypes, only=only, observe=_tell)
    return {f"{r.check}[{r.dtype}]": _in_words(r) for r in results}


def _in_words(result: CheckResult) -> str:
    return f"{result.outcome}: {result.detail}" if result.detail else str(result.outcome)


def _tell(result: CheckResult) -> None:
    times = f"{time.process_time():.0f} s of CPU in all, {result.time_s:.1f} s for"
    text = f"{times} {result.check}[{result.dtype}], {result.cases} cases: {_in_words(result)}"
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:]:
        whole = Interpreted(sys.argv[1], SIDE_BY_SIDE)
        parts: dict[str, Any] = {"battery": battery(whole, DTYPES)}
    else:
        parts = {
            "battery": battery(Interpreted(LARGE_TILES), QUICK_DTYPES, QUICK_CHECKS),
            "cells": outcomes_of_cells(CELLS_BY_DTYPE),
            "cells by descriptors": outcomes_of_cells(CELLS_BY_DESCRIPTORS, SMALL_TILES + "d"),
            "skipped": skipped(),
            "tried": [tried(with_descriptors) for with_descriptors in (False, True)],
            "operator": as_operator(),
        }
    print(json.dumps(parts))
