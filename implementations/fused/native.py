"""The native library: whether it is there, which paths it can run here, and its problem structure.

``Problem`` mirrors csrc/problem.h field by field; every field is 8 bytes wide.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from importlib import import_module
from types import ModuleType

import torch  # first, so that the library binds to torch's own OpenMP runtime: one thread pool

MISSING = (
    "the fused kernels were not built (install a C++17 compiler such as g++, then install "
    "mha-bench again: `pip install --force-reinstall --no-deps .` or `pip install -e .`)"
)


class Path(IntEnum):
    """Instruction sets, slowest first; numbers as in csrc/problem.h."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AMX = 3


class Pass(IntEnum):
    """What a native call computes."""

    FORWARD = 0
    BACKWARD = 1


ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class TensorField(ctypes.Structure):
    """Address and strides in elements; address 0 where there is none."""

    _fields_ = (
        ("data", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("row", ctypes.c_int64),
        ("column", ctypes.c_int64),
    )


_TENSORS = (
    *("query", "key", "value", "output"),
    *("grad_output", "grad_query", "grad_key", "grad_value"),
    *("key_padding", "keep", "bias"),
)
_INTEGERS = (
    *("log_sum_exp", "scratch"),
    *("batch_size", "num_heads", "num_kv_heads", "seq_len", "kv_seq_len", "qk_dim", "v_dim"),
    *("element_type", "causal_offset", "keys_before", "keys_after"),
    *("products", "path", "threads"),
)


class Problem(ctypes.Structure):
    """One attention problem; addresses and strides of a call's own tensors come with the call."""

    _fields_ = (
        *((name, TensorField) for name in _TENSORS),
        *((name, ctypes.c_int64) for name in _INTEGERS),
        ("scale", ctypes.c_double),
    )


@cache
def library() -> ModuleType | None:
    """The native library, or None where it was not built."""
    try:
        return import_module("implementations.fused._kernels")
    except ImportError:
        return None


@cache
def runnable_paths() -> tuple[Path, ...]:
    """Paths that the library has and this machine can run, slowest first; empty without library."""
    native = library()
    return () if native is None else tuple(Path(number) for number in native.runnable_paths())
