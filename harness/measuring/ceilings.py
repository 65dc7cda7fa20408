"""What this machine can do at most: rates of a large matrix product and of a large copy.

Measured at the start of a run, not read from a table: they depend on the threads, the dtype and
the machine's neighbours. The best of several samples counts, for a ceiling must not be too low.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.attention import Case, DType
from harness.jobs import Ceilings
from harness.measuring.device_clock import make_clock
from harness.tensors import torch_dtype
from harness.worker import Channel

_PRODUCT_SIZE = 1024
_CUDA_PRODUCT_SIZE = 8192
_COPY_BYTES = 64 * 2**20
_CUDA_COPY_BYTES = 2**30
_SAMPLE_S = 0.15


def send_ceilings(cases: Sequence[Case], channel: Channel) -> None:
    """Worker target: measure the ceilings of all these cases and send them.

    bfloat16 always among them: a float32 product can be made of several of its products.
    """
    dtypes = {c.config.dtype.value for c in cases} | {DType.BFLOAT16.value}
    products = sorted({(c.device, dtype, c.threads) for c in cases for dtype in dtypes})
    copies = sorted({(c.device, c.threads) for c in cases})
    usable = {device for device, _ in copies if device == "cpu" or torch.cuda.is_available()}
    channel.send(
        Ceilings(
            {key: product_flop_per_s(*key) for key in products if key[0] in usable},
            {key: copy_bytes_per_s(*key) for key in copies if key[0] in usable},
        )
    )


def product_flop_per_s(device: str, dtype: str, threads: int) -> float:
    """FLOP/s of a square matrix product, 2 n^3 operations each."""
    torch.set_num_threads(threads)
    size = _CUDA_PRODUCT_SIZE if device == "cuda" else _PRODUCT_SIZE
    matrix = torch.randn(size, size, device=device).to(torch_dtype(DType(dtype)))
    out = torch.empty_like(matrix)
    return 2 * size**3 / _best_time_s(lambda: torch.mm(matrix, matrix, out=out), device)


def copy_bytes_per_s(device: str, threads: int) -> float:
    """Bytes per second of a copy, each byte counted once read and once written."""
    torch.set_num_threads(threads)
    num_bytes = _CUDA_COPY_BYTES if device == "cuda" else _COPY_BYTES
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / _best_time_s(lambda: target.copy_(source), device)


def _best_time_s(run: Callable[[], Any], device: str) -> float:
    clock = make_clock(device)
    run()
    times: list[float] = []
    deadline = time.perf_counter() + _SAMPLE_S
    while len(times) < 3 or time.perf_counter() < deadline:
        times.append(clock.sample(run, 1).time_s)
    return min(times)
