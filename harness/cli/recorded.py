"""The command line of a run, kept in the run itself, so that it can go on later."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from harness.errors import StoreError
from harness.store import CONFIG_FILE, write_config


def remember(run: Path, words: Sequence[str], config: str) -> None:
    """Store the configuration as composed, and above it the words that it was composed from."""
    kept = OmegaConf.to_yaml({"command": list(words)})
    write_config(run, f"# {shlex.join(['mha-bench', 'sweep', *words])}\n{kept}{config}")


def recall(run: Path) -> list[str]:
    """The words after `mha-bench sweep` that made a run.

    Raises:
        StoreError: there is no such run, or it does not say.
    """
    path = existing(run) / CONFIG_FILE
    recorded = OmegaConf.load(path)
    if not isinstance(recorded, DictConfig) or "command" not in recorded:
        raise StoreError(f"{path} does not say by which command the run was made")
    return [str(word) for word in recorded["command"]]


def key(word: str) -> str:
    """What a word of a command line sets: its key or group."""
    return word.partition("=")[0].lstrip("+~")


def existing(run: Path) -> Path:
    """The run itself.

    Raises:
        StoreError: there is none at that path.
    """
    if not (run / CONFIG_FILE).is_file():
        raise StoreError(f"no run to go on with at {run} (it has no {CONFIG_FILE})")
    return run
