"""`mha-bench sweep` as a Hydra application: arguments in, composed configurations to ``run_job``.

Own options become overrides, lists of values are rewritten (``overrides``), and Hydra does the
rest; ``--cfg job``, ``--config-dir``, ``--help``, ``-m`` and shell completion are Hydra's own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from harness.cli import recorded, sweep_job
from harness.cli.groups import IMPLEMENTATION, conf_dir, group_options
from harness.cli.overrides import first_values, quoted, rewrite
from harness.config_schema import SweepSchema
from harness.errors import InvalidValueError
from harness.registry import installed_plugins


@dataclass(frozen=True)
class _Arguments:
    """A command line in Hydra's terms: flags with their values, overrides, and the flags read."""

    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    read: argparse.Namespace

    @property
    def is_multirun(self) -> bool:
        return self.read.multirun or "hydra.mode=MULTIRUN" in self.overrides

    @property
    def runs(self) -> bool:
        """Whether anything is to be measured or planned, rather than shown."""
        r = self.read
        return not (r.help or r.hydra_help or r.cfg or r.info or r.shell_completion)

    @property
    def more_dirs(self) -> tuple[Path, ...]:
        return (Path(self.read.config_dir),) if self.read.config_dir else ()


def run(words: Sequence[str]) -> int:
    """Do what a command line after `mha-bench sweep` says; returns the exit code.

    Raises:
        MhaBenchError, HydraException, OmegaConfBaseException: something typed is wrong.
    """
    arguments = _read(words)
    _register()
    if arguments.read.shell_completion:
        _call_hydra(sweep_job.run_job, (*arguments.overrides, *arguments.flags))
        return 0
    overrides = rewrite(
        arguments.overrides,
        lambda group: group_options(group, arguments.more_dirs),
        multirun=arguments.is_multirun and arguments.runs,
    )
    if not arguments.runs:
        _call_hydra(sweep_job.run_job, (*overrides, *arguments.flags))
        return 0
    if arguments.is_multirun:
        return _run_jobs(overrides, arguments, words)
    exit_codes: list[int] = []

    def job(cfg: DictConfig) -> None:
        exit_codes.append(sweep_job.run_single(cfg, words))

    _call_hydra(job, (*overrides, *arguments.flags))
    return exit_codes[0]


def resumed(run: Path, words: Sequence[str]) -> list[str]:
    """The words that go on with a run: its own, those typed now on top, and where to write."""
    typed = {_key(word) for word in words}
    kept = [word for word in recorded.recall(run) if "=" not in word or _key(word) not in typed]
    return [*kept, *words, f"run={quoted(str(run))}"]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _run_jobs(overrides: list[str], arguments: _Arguments, words: Sequence[str]) -> int:
    """One Hydra job per combination, on whatever launcher; all write into one run."""
    first = [flag for flag in arguments.flags if flag not in ("-m", "--multirun")]
    composed: list[DictConfig] = []
    _call_hydra(composed.append, (*first_values(overrides), *first, "hydra.mode=RUN"))
    with sweep_job.shared_run(composed[0], words) as run:
        place = quoted(str(run))
        shared = (f"hydra.sweep.dir={place}", f"run={place}")
        _call_hydra(sweep_job.run_job, (*overrides, *shared, *arguments.flags))
    return sweep_job.close_shared(run, composed[0])


def _read(words: Sequence[str]) -> _Arguments:
    parser = get_args_parser()
    parser.prog = "mha-bench sweep"
    read, unknown = parser.parse_known_intermixed_args(list(words))
    if unknown:
        raise InvalidValueError("sweep", "KEY=VALUE or an option (see --help)", unknown[0])
    exclusive = [name for name in ("multirun", "cfg", "info", "help") if getattr(read, name)]
    if len(exclusive) > 1:
        raise InvalidValueError(
            "sweep", "one of --multirun, --cfg, --info and --help", f"--{' --'.join(exclusive)}"
        )
    overrides = list(read.overrides)
    flags = [word for word in words if not _take(overrides, word)]
    return _Arguments(tuple(flags), tuple(read.overrides), read)


def _take(overrides: list[str], word: str) -> bool:
    if word not in overrides:
        return False
    overrides.remove(word)
    return True


def _register() -> None:
    store = ConfigStore.instance()
    store.store(name="schema", node=SweepSchema)
    for plugin in installed_plugins():
        store.store(
            group=IMPLEMENTATION,
            name=plugin.name,
            node={"target": plugin.target, "options": {}},
            package=f"implementations.{plugin.name}",
        )


def _call_hydra(task: Callable[[DictConfig], Any], words: Sequence[str]) -> None:
    decorate = hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")
    with _command_line(words):
        decorate(task)()


@contextmanager
def _command_line(words: Sequence[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and hands on exceptions only when asked for full errors."""
    argv, variable = sys.argv, "HYDRA_FULL_ERROR"
    before = os.environ.get(variable)
    sys.argv = ["mha-bench", *words]
    os.environ[variable] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
