"""Tensor descriptors: rows are copied by the card's own engine (TMA), which needs no addresses.

Made on the host for each launch, so that kernels need no scratch memory for them. A tensor that
can't have one is read by pointers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

LEAST_FOR_DESCRIPTORS = (9, 0)  # compute capability: Hopper
_UNIT_BYTES = 16
_MOST_BYTES = 2**40  # a stride ends before


def refusal(x: Tensor) -> str:
    """Why a tensor ``[B, H, L, D]`` can have no descriptor; empty: it can."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        return f"numbers of a row {x.stride(-1)} apart (only 1)"
    if x.data_ptr() % _UNIT_BYTES:
        return f"address {x.data_ptr() % _UNIT_BYTES} bytes beyond a multiple of {_UNIT_BYTES}"
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        step = stride * x.itemsize
        if size > 1 and (step <= 0 or step % _UNIT_BYTES or step >= _MOST_BYTES):
            return f"stride of {step} bytes (a multiple of {_UNIT_BYTES} from {_UNIT_BYTES} on)"
    return ""


def descriptors(tensors: tuple[Tensor, Tensor], rows: int, columns: int) -> tuple[Any, Any]:
    """Descriptors of tensors ``[B, H, L, D]``, for tiles ``[rows, columns]`` of one head each.

    Returns:
        None for both, where one of them can have none.
    """
    if any(refusal(x) for x in tensors):
        return None, None
    first, second = (_descriptor(x, rows, columns) for x in tensors)
    return first, second


def _descriptor(x: Tensor, rows: int, columns: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    # The stride of an axis of one entry is never used, but must be legal.
    unused = -(-x.shape[-1] * x.itemsize // _UNIT_BYTES) * _UNIT_BYTES // x.itemsize
    sizes = zip(x.shape[:-1], x.stride()[:-1], strict=True)
    strides = [stride if size > 1 else unused for size, stride in sizes]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, columns])
