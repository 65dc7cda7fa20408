"""One composed configuration, measured: convert, plan, find the run's folder, sweep, close.

``run_single`` is a whole sweep; ``run_job`` is one of several Hydra jobs that share a run, on
whatever machine its launcher put it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from harness.cli import closing, recorded
from harness.cli.plan_text import describe, headline, left_out
from harness.cli.progress import watching
from harness.planning.config import RunConfig, to_run_config
from harness.planning.plan import Plan, make_plan
from harness.planning.repro import Invocation
from harness.planning.targets import require_targets
from harness.store import create_run
from harness.sweep import run_sweep

_INTERRUPTED = 130  # as shells report an end by SIGINT


def invocation() -> Invocation:
    """How Hydra was called; to be asked within one of its jobs."""
    hydra_cfg = HydraConfig.get()
    sources = hydra_cfg.runtime.config_sources
    added = [source.path for source in sources if source.provider == "command-line"]
    return Invocation(
        overrides=tuple(hydra_cfg.overrides.task),
        measure=hydra_cfg.runtime.choices["measure"],
        config_dir=added[0] if added else None,
    )


def run_single(cfg: DictConfig, called: Invocation, words: Sequence[str]) -> int:
    """A whole sweep; returns the exit code."""
    config, plan = _planned(cfg, called)
    if config.dry_run:
        _show(plan, config)
        return 0
    run = _open_run(config, cfg, words)
    try:
        _measure(plan, run, config)
    except KeyboardInterrupt:
        return interrupted(run)
    return closing.close(run, config)


def interrupted(run: Path) -> int:
    """Say how to go on after a stop from the keyboard; returns the exit code."""
    closing.say_interrupted(run)
    return _INTERRUPTED


def run_job(cfg: DictConfig) -> None:
    """One job of a multirun: adds its rows to the run that ``cfg.run`` names."""
    config, plan = _planned(cfg, invocation())
    if config.dry_run:
        _show(plan, config)
        return
    assert config.resume is not None, "the parent made the run"
    _measure(plan, config.resume, config)


@contextmanager
def shared_run(cfg: DictConfig, called: Invocation, words: Sequence[str]) -> Iterator[Path]:
    """A run for several jobs; where nothing is measured, a folder that vanishes again."""
    config = to_run_config(cfg, called)
    if config.dry_run:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        yield _open_run(config, cfg, words).absolute()


def close_shared(run: Path, cfg: DictConfig) -> int:
    """The closing words over all jobs' rows; returns the exit code."""
    config = to_run_config(cfg)
    if config.dry_run:
        return 0
    here = Path.cwd()
    return closing.close(run.relative_to(here) if run.is_relative_to(here) else run, config)


def _planned(cfg: DictConfig, called: Invocation) -> tuple[RunConfig, Plan]:
    config = to_run_config(cfg, called)
    require_targets(config.implementations)
    return config, make_plan(config)


def _open_run(config: RunConfig, cfg: DictConfig, words: Sequence[str]) -> Path:
    """The run to write to: an existing one, or a new one that knows its command line."""
    if config.resume is not None:
        return recorded.existing(config.resume)
    run = create_run(config.results_dir, config.name)
    recorded.remember(run, words, OmegaConf.to_yaml(cfg))
    return run


def _show(plan: Plan, config: RunConfig) -> None:
    console = Console()
    for line in describe(plan, config):
        console.print(line, highlight=False, soft_wrap=True)


def _measure(plan: Plan, run: Path, config: RunConfig) -> None:
    console = Console(stderr=True)
    console.print(f"{headline(plan)}; rows go to {run}", markup=False, highlight=False)
    for line in left_out(plan):
        console.print(line, highlight=False, soft_wrap=True)
    with watching(plan, console) as observer:
        run_sweep(plan, run, config, observer)
