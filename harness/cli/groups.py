"""Where conf/ lies, and which options its groups have. No Hydra: file names are the options."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import harness
from harness.plugins.registry import installed_plugins

IMPLEMENTATION = "implementation"


def conf_dir() -> Path:
    """The folder with config.yaml: beside harness/ in a checkout, inside it when installed."""
    checkout = Path(harness.__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").exists() and (checkout / "conf" / "config.yaml").exists():
        return checkout / "conf"
    return Path(str(resources.files("harness.conf")))


def group_options(group: str, more_dirs: Sequence[Path] = ()) -> list[str]:
    """The options of a group, by name: packaged ones, those in ``more_dirs``, and plug-ins."""
    folders = [folder / group for folder in (conf_dir(), *more_dirs)]
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    if group == IMPLEMENTATION:
        names |= {plugin.name for plugin in installed_plugins()}
    return sorted(names)


def first_comment(group: str, option: str, more_dirs: Sequence[Path] = ()) -> str:
    """What an option's file says about itself in its first comment; empty where it says nothing."""
    for folder in (*more_dirs, conf_dir()):
        path = folder / group / f"{option}.yaml"
        if path.exists():
            return _first_comment(path.read_text())
    return ""


def _first_comment(text: str) -> str:
    words = []
    for line in text.splitlines():
        if line.startswith("# @package"):
            continue
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# ").rstrip())
    return " ".join(words)
