"""`mha-bench sweep` as a Hydra application: arguments in, composed configurations to ``run_job``.

Own options become overrides, lists of values are rewritten (``overrides``), and Hydra does the
rest; ``--cfg job``, ``--config-dir``, ``--help``, ``-m`` and shell completion are Hydra's own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from harness.cli import recorded, sweep_job
from harness.cli.groups import IMPLEMENTATION, conf_dir, group_options
from harness.cli.overrides import first_values, quoted, rewrite
from harness.errors import InvalidValueError, MhaBenchError
from harness.planning.config_schema import SweepSchema
from harness.planning.repro import Invocation
from harness.plugins.registry import installed_plugins

_MULTIRUN_FLAGS = ("-m", "--multirun")


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
    _register()
    arguments = _read(words)
    if not arguments.runs:
        _call_hydra(sweep_job.run_job, arguments.overrides, arguments.flags)
        return 0
    if arguments.is_multirun:
        return _run_jobs(arguments, words)
    outcomes: list[int | MhaBenchError] = []

    def job(cfg: DictConfig) -> None:
        try:
            outcomes.append(sweep_job.run_single(cfg, sweep_job.invocation(), words))
        except MhaBenchError as error:  # raised below, where Hydra can't add its own lines
            outcomes.append(error)

    _call_hydra(job, arguments.overrides, arguments.flags)
    if isinstance(outcomes[0], MhaBenchError):
        raise outcomes[0]
    return outcomes[0]


def compose(words: Sequence[str]) -> tuple[DictConfig, Invocation]:
    """What a command line composes to, without running it; of several jobs the first."""
    _register()
    arguments = _read(words)
    flags = [flag for flag in arguments.flags if flag not in _MULTIRUN_FLAGS]
    composed: list[tuple[DictConfig, Invocation]] = []

    def job(cfg: DictConfig) -> None:
        composed.append((cfg, sweep_job.invocation()))

    _call_hydra(job, first_values(arguments.overrides), flags)
    return composed[0]


def _run_jobs(arguments: _Arguments, words: Sequence[str]) -> int:
    """One Hydra job per combination, on whatever launcher; all write into one run."""
    cfg, invocation = compose(words)
    with sweep_job.shared_run(cfg, invocation, words) as run:
        place = quoted(str(run))
        shared = (f"hydra.sweep.dir={place}", f"run={place}")
        try:
            _call_hydra(sweep_job.run_job, (*arguments.overrides, *shared), arguments.flags)
        except KeyboardInterrupt:
            return sweep_job.interrupted(run)
        except Exception:  # Hydra raises the first job's failure when all jobs have ended
            sweep_job.close_shared(run, cfg)
            raise
        return sweep_job.close_shared(run, cfg)


def resumed(run: Path, words: Sequence[str]) -> list[str]:
    """The words that go on with a run: its own, those typed now on top, and where to write."""
    typed = {recorded.key(word) for word in words}
    kept = [
        word for word in recorded.recall(run) if "=" not in word or recorded.key(word) not in typed
    ]
    return [*kept, *words, f"run={quoted(str(run))}"]


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
    typed = list(read.overrides)
    flags = tuple(word for word in words if not _take(typed, word))
    arguments = _Arguments(flags, tuple(read.overrides), read)
    if read.shell_completion:
        return arguments
    overrides = rewrite(
        arguments.overrides,
        lambda group: group_options(group, arguments.more_dirs),
        multirun=arguments.is_multirun and arguments.runs,
    )
    return replace(arguments, overrides=tuple(overrides))


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


def _call_hydra(
    task: Callable[[DictConfig], Any], overrides: Iterable[str], flags: Iterable[str]
) -> None:
    decorate = hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")
    with _command_line((*overrides, *flags)):
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
