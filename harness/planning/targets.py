"""A first look at the implementations' targets, without importing them: typing errors show at once.

Whatever else is wrong with a plug-in shows in its worker, and becomes the status of its rows.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from harness.errors import PluginError
from harness.settings import ImplementationSpec


def require_targets(specs: Iterable[ImplementationSpec]) -> None:
    """Check that every target names a module or file that is there.

    Raises:
        PluginError: one does not; says where it was looked for.
    """
    for spec in specs:
        where, colon, attribute = spec.target.rpartition(":")
        if not (colon and where and attribute):
            raise PluginError(
                f"implementations.{spec.name}.target: expected module:Class, got {spec.target!r}"
            )
        if not _exists(where):
            raise PluginError(
                f"implementations.{spec.name}.target: there is no {where!r} (neither installed, "
                f"nor on PYTHONPATH, nor in the current folder {os.getcwd()})"
            )


def _exists(where: str) -> bool:
    if where.endswith(".py"):
        return Path(where).is_file()
    package = where.partition(".")[0]
    here = Path.cwd()
    if (here / f"{package}.py").exists() or (here / package).is_dir():
        return True
    return package in sys.modules or importlib.util.find_spec(package) is not None
