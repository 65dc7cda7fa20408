"""One function, compiled, that knows whether its graphs are in use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from harness.interface import Case, operators_run

_CPP_COMPILERS = ("g++", "clang++", "c++")


class Region:
    """A function compiled by inductor for the shapes of one case.

    Args:
        function: Takes tensors and constants, returns a tensor.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.graphs = 0
        self.call: Callable[..., Tensor] = torch.compile(
            _own_copy(function), backend=self._compile, fullgraph=True, dynamic=False
        )

    def _compile(self, graph: Any, example_inputs: Any) -> Any:
        from torch._functorch import config
        from torch._inductor.compile_fx import compile_fx

        # Mode backward walks one graph again and again, which donated buffers forbid.
        with config.patch(donated_buffer=False):
            compiled = compile_fx(graph, example_inputs)
        self.graphs += 1
        return compiled

    @property
    def findings(self) -> tuple[str, ...]:
        """What a reader must know of how the function ran; to be asked after a call."""
        if self.graphs == 0:
            return ("finding: fell back to eager code, torch.compile made no graph",)
        if self.graphs > 1:
            return (f"finding: compiled {self.graphs} graphs for one case",)
        return ()


def _own_copy(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function with a code object of its own.

    Torch compiles a code object for 8 sets of shapes and then goes back to eager code (vllm#27178);
    a copy for each case keeps every case compiled.
    """
    assert isinstance(function, FunctionType)
    return FunctionType(
        function.__code__.replace(co_name=f"{function.__name__}_of_case"),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def missing_compiler(device: str) -> Iterable[str]:
    """Why inductor can't compile for a device here."""
    if device == "cuda" and find_spec("triton") is None:
        yield "triton is not installed: pip install 'mha-bench[triton]'"
    named = os.environ.get("CXX")
    compilers = (named,) if named else _CPP_COMPILERS
    if device == "cpu" and not any(shutil.which(compiler) for compiler in compilers):
        yield f"no C++ compiler ({', '.join(compilers)}): install g++"


def attention_operator(call: Callable[[], Tensor], case: Case) -> str | None:
    """The first operator of attention that a call of this case runs, if any."""
    with torch.set_grad_enabled(case.mode.is_training):
        names = operators_run(call, case.device)
    return next((name for name in names if "attention" in name and name.startswith("aten::")), None)
