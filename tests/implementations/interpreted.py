"""Runs a module of this folder in a process in which Triton interprets its kernels.

The interpreter must be asked for before triton is imported, hence a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT_S = 7200  # against hanging only: on a busy machine the whole battery takes long


def printed_by(module: str, *words: str) -> dict[str, Any]:
    """The JSON object that a module prints last; what it tells meanwhile is seen by pytest -s."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.implementations.{module}", *words],
        env=os.environ | {"TRITON_INTERPRET": "1", "XFORMERS_ENABLE_TRITON": "1"},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{module} failed: see its standard error"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
