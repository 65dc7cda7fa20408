"""Emptying the processor's caches between timed calls, outside their windows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.environment import cache_sizes_bytes

_AT_LEAST_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}
_AT_MOST_BYTES = 2**30  # virtual machines report the whole host's last level


def make_flush(device: str) -> Callable[[], None]:
    """A function that streams a buffer of at least twice the last-level cache.

    On CUDA a memset of ``max(256 MiB, 2 x L2)`` on the current stream.
    """
    wanted = max(_AT_LEAST_BYTES[device], 2 * _last_level_bytes(device))
    buffer = torch.zeros(min(wanted, _AT_MOST_BYTES) // 4, device=device)

    def flush() -> None:
        with torch.no_grad():
            buffer.add_(1.0) if device == "cpu" else buffer.zero_()

    return flush


def _last_level_bytes(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    return max(cache_sizes_bytes().values(), default=0)
