"""From ``module:attribute`` to the object that it names, or to an error that helps.

The module is a dotted name, importable from the installed packages, PYTHONPATH or the current
folder, or the path of a ``.py`` file.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from harness.errors import PluginError


def find_target(target: str) -> Any:
    """What ``module:attribute`` or ``path/to/file.py:attribute`` names.

    Raises:
        PluginError: the module can't be found or imported, or lacks the attribute.
    """
    where, colon, attribute = target.rpartition(":")
    if not (colon and where and attribute):
        raise PluginError(f"expected target=module:Class, got {target!r}")
    module = _import(where)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise PluginError(
            f"module {where} has no {attribute!r}; {_candidates(module, attribute)}"
        ) from None


def _candidates(module: ModuleType, attribute: str) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]
    if not own:
        return "it defines no class and no function"
    close = difflib.get_close_matches(attribute, own, n=1)
    return f"it has {', '.join(own)}" + (f"; did you mean {close[0]}?" if close else "")


def _import(where: str) -> ModuleType:
    # A console script's path lacks the folder that its user stands in.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return (
            _import_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        )
    except PluginError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise PluginError(_not_found(where, error.name)) from None
        raise_in_its_words(f"importing {where}", error)
    except (Exception, SystemExit) as error:
        raise_in_its_words(f"importing {where}", error)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PluginError(f"there is no file {path} (seen from {os.getcwd()})")
    name = f"mha_bench_plugin_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise PluginError(f"{path} can't be imported as a module")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    module_spec.loader.exec_module(module)
    return module


def _not_found(where: str, missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    if parent:
        return f"package {parent} has no module {last!r}"
    hint = "is it installed, on PYTHONPATH, or in the current folder"
    return f"there is no module {missing!r} ({hint} {os.getcwd()}?)"


def raise_in_its_words(doing: str, error: BaseException) -> NoReturn:
    """Raise what foreign code raised as a PluginError that quotes it."""
    raise PluginError(f"{doing} raised {type(error).__name__}: {error}") from error
