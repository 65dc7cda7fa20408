"""xformers' real split-K kernel on CPU tensors, in Triton's interpreter: a process of its own.

The interpreter must be asked for before triton is imported. Prints one JSON object: what became of
each case by name.

    TRITON_INTERPRET=1 XFORMERS_ENABLE_TRITON=1 python -m tests.implementations.interpreted_splitk
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from harness.interface import Case
from implementations.xformers import XformersSplitK
from implementations.xformers.operators import Operator
from tests.implementations.exact import case_of, exact_attention, random_inputs


class Interpreted(XformersSplitK):
    """The adapter as it is, with an operator that takes CPU tensors.

    Args:
        split_k: Into how many parts the keys are split.
    """

    devices = frozenset({"cpu"})

    def __init__(self, split_k: int = 1) -> None:
        from xformers.ops.fmha.triton_splitk import FwOp

        class OnCpu(FwOp):  # type: ignore[misc]
            SUPPORTED_DEVICES = frozenset({"cuda", "cpu"})

        self._operator = Operator("triton_splitk", OnCpu.get_operator(split_k), None)

    def candidates(self, case: Case) -> tuple[Operator, ...]:
        return (self._operator,)


@dataclass(frozen=True)
class Outcome:
    """What became of a case; error is the largest absolute one against float64."""

    reasons: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    error: float | None = None
    kernel: str = ""
    notes: tuple[str, ...] = ()


# Name: mask, split_k, axes.
_FLOAT16 = {"dtype": "float16", "head_dim": 16, "seq_len": 13}
CASES: dict[str, tuple[str, int, dict[str, object]]] = {
    "plain": ("none", 1, {}),
    "split": ("none", 4, {}),
    "one query": ("none", 4, {"seq_len": 1, "kv_seq_len": 200}),
    "scale": ("none", 1, {"scale": 0.7}),
    "causal": ("causal", 1, {}),
    "top left": ("top_left", 1, {"kv_seq_len": 20}),
    "bottom right": ("bottom_right", 1, {"kv_seq_len": 40}),
    "rows without keys": ("bottom_right", 1, {"kv_seq_len": 9}),
    "window": ("window:3", 1, {}),
    "bias of odd length": ("bias:random", 1, {"seq_len": 77}),
    "padding": ("padding:0.5", 1, {}),
    "all parts": ("bottom_right+padding:0.3+keep:random+bias:random", 1, {"kv_seq_len": 19}),
    "grouped": ("none", 1, {"num_kv_heads": 2}),
    "grouped and split": ("none", 4, {"num_kv_heads": 2, "kv_seq_len": 130}),
    "grouped to one": ("padding:0.5", 1, {"num_kv_heads": 1}),
    "grouped with a bias per head": ("causal+bias:random", 1, {"num_kv_heads": 2}),
    "head_dim 64": ("causal", 1, {"head_dim": 64}),
    "bias and split": ("bias:random", 4, {}),
    "float32": ("none", 1, {"dtype": "float32"}),
    "head_dim 24": ("none", 1, {"head_dim": 24}),
}


def outcome(mask: str, split_k: int, axes: dict[str, object]) -> Outcome:
    case = case_of(mask, **(_FLOAT16 | axes))  # type: ignore[arg-type]
    implementation = Interpreted(split_k)
    if reasons := implementation.unsupported_reasons(case):
        return Outcome(reasons)
    inputs = random_inputs(case)
    output = implementation.prepare(case, inputs)()
    gap = output.double() - exact_attention(case.config, inputs)
    return Outcome(
        shape=tuple(output.shape),
        error=float(gap.abs().max()),
        kernel=implementation.kernel(case, inputs),
        notes=implementation.notes(case),
    )


if __name__ == "__main__":
    print(json.dumps({name: asdict(outcome(*what)) for name, what in CASES.items()}))
