"""`mha-bench list`: what can be chosen, and why an implementation can't run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.attention import Case, DType, Scope
from harness.cli.abilities import Abilities
from harness.cli.groups import IMPLEMENTATION, conf_dir, first_comment, group_options
from harness.distributions import DISTRIBUTIONS
from harness.planning.axes import DEVICES
from harness.plugins.registry import installed_plugins
from harness.settings import ImplementationSpec

_MORE = """--matrix: dtypes, modes, masks and sizes on each device
--why NAME AXIS=VALUE ...: why that one can't do a case, or that it can
--probe NAME ...: tiny real calls, held against what is claimed"""
_SHAPE = ("hidden_size", "num_heads", "num_kv_heads", "head_dim")


def show(more_dirs: Sequence[Path] = ()) -> None:
    """Print implementations with what they can do on this machine, sweeps, models and inputs."""
    console = Console()
    specs = tuple(known_implementations(more_dirs))
    answers = Abilities.asked(specs)
    show_table(console, _implementations(answers, more_dirs))
    for device in DEVICES:
        for reason in answers.reasons_of_all(device):
            console.print(Text(f"{device}: {reason}", style="dim"))
    console.print(Text(_MORE, style="dim"))
    show_table(console, _comments("sweep", more_dirs))
    show_table(console, _comments("measure", more_dirs))
    show_table(console, _models(more_dirs))
    show_table(console, _inputs())


def known_implementations(more_dirs: Sequence[Path] = ()) -> Iterator[ImplementationSpec]:
    """Every implementation that a sweep can name, with its options' defaults."""
    plugins = {plugin.name: plugin for plugin in installed_plugins()}
    for name in group_options(IMPLEMENTATION, more_dirs):
        entry = _read(IMPLEMENTATION, name, more_dirs)
        if entry is None:
            yield plugins[name]
        else:
            target, options = str(entry.get("target", "")), entry.get("options") or {}
            yield ImplementationSpec(name, target, options)


def _read(group: str, option: str, more_dirs: Sequence[Path]) -> Mapping[str, Any] | None:
    """What an option's file says; None where there is no file."""
    paths = [folder / group / f"{option}.yaml" for folder in (*more_dirs, conf_dir())]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return None
    entry: Any = OmegaConf.to_container(OmegaConf.load(path))
    return entry if isinstance(entry, dict) else {}


def _implementations(answers: Abilities, more_dirs: Sequence[Path]) -> Table:
    table = table_of("implementation=", "runs here", "")
    unable = []
    for spec in answers.specs:
        able = {device: answers.able(spec.name, device) for device in DEVICES}
        here = "; ".join(f"{device}: {_ability(cases)}" for device, cases in able.items() if cases)
        if here:
            about = Text(first_comment(IMPLEMENTATION, spec.name, more_dirs))
            table.add_row(spec.name, here, about)
        else:
            unable.append(spec.name)
    for name in unable:
        reasons = Text("; ".join(answers.why_not(name)), style="dim")
        table.add_row(Text(name, style="dim"), Text("no", style="dim"), reasons)
    return table


def _ability(cases: Sequence[Case]) -> str:
    """Dtypes, and the scope where only one can be done."""
    dtypes = {case.config.dtype.value: None for case in cases}
    scopes = {case.scope.value: None for case in cases}
    said = "every dtype" if len(dtypes) == len(DType) else ", ".join(dtypes)
    return said if len(scopes) == len(Scope) else f"{said} (scope {', '.join(scopes)})"


def _comments(group: str, more_dirs: Sequence[Path]) -> Table:
    table = table_of(f"{group}=", "")
    for option in group_options(group, more_dirs):
        table.add_row(option, Text(first_comment(group, option, more_dirs)))
    return table


def _models(more_dirs: Sequence[Path]) -> Table:
    table = table_of("model=", *_SHAPE)
    for option in group_options("model", more_dirs):
        shape = _read("model", option, more_dirs) or {}
        table.add_row(option, *(str(shape.get(axis, "")) for axis in _SHAPE))
    return table


def _inputs() -> Table:
    table = table_of("inputs=", "")
    for name, meaning in DISTRIBUTIONS.items():
        table.add_row(name, Text(meaning))
    return table


def table_of(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    return table


def show_table(console: Console, table: Table) -> None:
    console.print()
    console.print(table)
