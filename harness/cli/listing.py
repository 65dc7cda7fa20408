"""`mha-bench list`: what can be chosen, and why an implementation can't run here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.attention import Case, DType
from harness.axes import DEVICES
from harness.cells import Claims, ask_claims
from harness.cli.groups import IMPLEMENTATION, conf_dir, first_comment, group_options
from harness.distributions import DISTRIBUTIONS
from harness.registry import installed_plugins
from harness.settings import ImplementationSpec
from harness.worker import ForkServer

# A shape that every kernel can do if it can do anything.
_EASY = {"hidden_size": 512, "num_heads": 8, "seq_len": 128}


def show(more_dirs: Sequence[Path] = ()) -> None:
    """Print implementations with what they can do on this machine, sweeps, models and inputs."""
    console = Console()
    specs = tuple(known_implementations(more_dirs))
    cases = {(d, t): _case(d, t) for d in DEVICES for t in DType}
    claims = ask_claims(ForkServer(), specs, tuple(cases.values()))
    console.print(_implementations(specs, cases, claims))
    console.print(_group("sweep", more_dirs))
    console.print(_group("model", more_dirs))
    console.print(_group("measure", more_dirs))
    inputs = _table("inputs", "where the numbers come from")
    for name, meaning in DISTRIBUTIONS.items():
        inputs.add_row(name, escape(meaning))
    console.print(inputs)


def known_implementations(more_dirs: Sequence[Path] = ()) -> Iterator[ImplementationSpec]:
    """Every implementation that a sweep can name, with its options' defaults."""
    plugins = {plugin.name: plugin for plugin in installed_plugins()}
    for name in group_options(IMPLEMENTATION, more_dirs):
        files = [folder / IMPLEMENTATION / f"{name}.yaml" for folder in (*more_dirs, conf_dir())]
        found = next((path for path in files if path.exists()), None)
        yield plugins[name] if found is None else _read_spec(name, found)


def _read_spec(name: str, path: Path) -> ImplementationSpec:
    entry = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(entry, dict)
    return ImplementationSpec(name, str(entry.get("target", "")), entry.get("options") or {})


def _case(device: str, dtype: DType) -> Case:
    return Case.from_dict({**_EASY, "dtype": dtype.value, "device": device})


def _implementations(
    specs: Sequence[ImplementationSpec], cases: dict[tuple[str, DType], Case], claims: Claims
) -> Table:
    table = _table("implementation", *DEVICES)
    for spec in specs:
        problem = claims.problems.get(spec.name)
        cells = [
            _ability(spec.name, {t: cases[device, t] for t in DType}, claims)
            if problem is None
            else f"[red]{escape(problem[1])}[/]"
            for device in DEVICES
        ]
        table.add_row(spec.name, *cells)
    return table


def _ability(name: str, cases: dict[DType, Case], claims: Claims) -> str:
    """The dtypes that an implementation can do on a device, or why it can do none."""
    reasons = {t: claims.unsupported.get((name, case.key), ()) for t, case in cases.items()}
    able = [t.value for t, said in reasons.items() if not said]
    if able:
        return ", ".join(able)
    shared = set.intersection(*(set(said) for said in reasons.values()))
    first = next(iter(reasons.values()))
    said = [reason for reason in first if reason in shared] or list(first)
    return f"[dim]{escape('; '.join(said))}[/]"


def _group(group: str, more_dirs: Sequence[Path]) -> Table:
    table = _table(group, f"{group}=NAME")
    for option in group_options(group, more_dirs):
        table.add_row(option, escape(first_comment(group, option, more_dirs)))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, title_justify="left", padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, header_style="bold", overflow="fold")
    return table
