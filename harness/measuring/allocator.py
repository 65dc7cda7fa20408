"""glibc's allocator, set at run time in a fresh worker before it allocates anything large.

``mallopt`` does in a running process what the ``MALLOC_`` environment variables do at start
(mallopt(3)). Elsewhere than on glibc every function here reports that it did nothing.
"""

from __future__ import annotations

import ctypes
import sys

from harness.attention import Allocator

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_NEVER_TRIM_BYTES = 2**31 - 1  # mallopt takes an int
_SMALL_BYTES = 131_072


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def set_for_timing(allocator: Allocator) -> bool:
    """Make freed pages stay mapped (``reuse``), or leave the defaults (``system``).

    With the defaults, a process keeps or returns large blocks depending on the history of its heap,
    which moved the time of naive attention between processes by up to 80 %.

    Returns:
        Whether the wanted state holds.
    """
    if allocator is Allocator.SYSTEM:
        return True
    libc = _glibc()
    if libc is None:
        return False
    kept = libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM_BYTES)
    return bool(kept)


def set_for_resident_memory() -> bool:
    """Make every large block its own mapping, so that resident memory follows what is in use."""
    libc = _glibc()
    if libc is None:
        return False
    return bool(
        libc.mallopt(_M_MMAP_THRESHOLD, _SMALL_BYTES)
        and libc.mallopt(_M_TRIM_THRESHOLD, _SMALL_BYTES)
        and libc.mallopt(_M_ARENA_MAX, 1)
    )


def trim() -> None:
    """Return free pages to the system."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)
