"""The command line as a user meets it: a process of its own, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from harness.cli import main

# A sweep over a tiny shape, as quick as measuring can be; the length is left open.
TINY = (
    "hidden_size=16",
    "num_heads=2",
    "threads=1",
    "measure=smoke",
    "measure.budget_s=0.1",
    "measure.warmup_min_s=0",
    "measure.warmup_max_s=0.05",
    "measure.max_rounds=6",
    "measure.memory_repeats=1",
)

_CHECKOUT = Path(__file__).resolve().parent.parent


def mha_bench(
    *words: str,
    cwd: Path,
    python: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run ``mha-bench WORDS`` in ``cwd``, 80 columns wide and without a terminal.

    Args:
        python: Options of the interpreter.
    """
    return subprocess.run(
        [sys.executable, *python, "-m", "harness", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(_CHECKOUT), "COLUMNS": "80", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def mha_bench_here(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same within this process: quicker, for commands that end before they measure."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["mha-bench", *words]),
    ):
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def processor_time_of_children_s():
    """Of all that have ended: unlike the wall clock, it does not count waiting for others."""
    times = os.times()
    return times.children_user + times.children_system
