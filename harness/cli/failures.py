"""Exceptions as one clear line each, for people who typed something wrong.

Whatever is not translated here is a fault of ours and keeps its traceback.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from harness.errors import MhaBenchError
from harness.planning.names import unknown_name


def explain(error: BaseException) -> str | None:
    """The line to show for an error that its user can mend; None for any other."""
    if isinstance(error, MhaBenchError):
        return _one_line(error)
    if "hydra" not in sys.modules:
        return None
    return _explain_hydra(error)


def _explain_hydra(error: BaseException) -> str | None:
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, OverrideParseException):
        return f"{error.override}: expected KEY=VALUE, {_one_line(error)}"
    if isinstance(error, MissingConfigException):
        return _explain_missing(error)
    if isinstance(error, HydraException):
        cause = error.__cause__
        if isinstance(cause, OmegaConfBaseException):
            return _explain_omegaconf(cause)
        return _one_line(error)
    return _explain_omegaconf(error) if isinstance(error, OmegaConfBaseException) else None


# Launchers come from packages of their own, and presets of conf/hydra/launcher build on them.
_EXTRAS = {"submitit": "slurm", "ray": "ray"}


def _explain_missing(error: Any) -> str:
    message = _one_line(error)
    launcher = re.search(r"'hydra/launcher/((submitit|ray)\w*)'", message.rpartition(":")[2])
    if launcher is not None:
        extra = _EXTRAS[launcher[2]]
        return f"hydra/launcher: {launcher[1]} is not installed: pip install 'mha-bench[{extra}]'"
    group, slash, option = (error.missing_cfg_file or "").rpartition("/")
    if slash and error.options:
        return str(unknown_name(group, f"an option of {group}", option, error.options))
    return message


def _explain_omegaconf(error: Any) -> str:
    """An unknown key with its close matches; a wrong type with the key that it was meant for."""
    from omegaconf import DictConfig
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    key, parent = error.full_key or error.key, error.parent_node
    unknown = isinstance(error, (ConfigAttributeError, ConfigKeyError))
    if unknown and isinstance(parent, DictConfig):
        known = [str(name) for name in parent if name != "hydra"]
        typed = str(error.key)
        return str(unknown_name(str(key), "an existing key", typed, known))
    message = _one_line(error)
    return f"{key}: {message}" if key else message


def _one_line(error: BaseException) -> str:
    """The message without Hydra's hints and OmegaConf's appendix of internal names."""
    lines = []
    for line in str(error).splitlines():
        if re.match(
            r"\s*(full_key:|object_type=|reference_type=|See http|Config search path)", line
        ):
            break
        lines.append(line.strip())
    return " ".join(line for line in lines if line)
