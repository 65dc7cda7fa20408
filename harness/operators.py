"""Which torch operators a call really runs, as torch's profiler sees them.

What an implementation asked for and what ran can differ: a compiler rewrites, a dispatcher chooses,
a compiled function falls back. On CUDA the names of the launched kernels follow their operator.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.autograd.profiler import profile


def operators_run(call: Callable[[], object], device: str = "cpu") -> tuple[str, ...]:
    """Names of the operators in the order in which they began, nested ones included.

    Runs the call once, in the grad mode that holds outside.
    """
    on_cuda = device == "cuda"
    with _quiet(), profile(use_device="cuda" if on_cuda else None, use_kineto=True) as recorded:
        call()
        if on_cuda:
            torch.cuda.synchronize()
    names: list[str] = []
    for event in recorded.function_events or ():
        names.append(event.name)
        names.extend(kernel.name for kernel in event.kernels)
    return tuple(names)


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler's start and end write to the standard error, past Python."""
    sys.stderr.flush()
    saved, silent = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(silent)
