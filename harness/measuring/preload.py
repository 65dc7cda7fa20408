"""Imported once by the fork server, so that every worker starts with torch loaded, in milliseconds.

Nothing here may start threads: a child forked after a multi-threaded operation hangs in OpenMP. The
profiler's first start takes a second in any process; started here on one tiny tensor, it costs the
children nothing.
"""

from __future__ import annotations

import gc
import os
import sys

import numpy.random  # noqa: F401  (numpy loads it late: in a worker, beyond its memory limit)
import torch
from torch.autograd.profiler import profile

import harness.measuring.bench  # noqa: F401  (loaded here so that no worker has to)


def _start_profiler_once() -> None:
    """Quietly: the profiler writes to the standard error, past Python."""
    sys.stderr.flush()
    saved = os.dup(2)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    try:
        with profile(profile_memory=True, use_kineto=True):
            torch.empty(1)
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(silent)


_start_profiler_once()
gc.collect()
gc.freeze()  # collections in the workers need not walk what was loaded here: 1 ms, not 50
