"""`mha-bench list --matrix`, `--why` and `--probe`: what is claimed, and whether it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.attention import Case
from harness.cli.deciding import number_or_text, read_axes
from harness.cli.listing import known_implementations, show_table, table_of
from harness.findings import probe, probe_cases
from harness.planning.axes import DEVICES
from harness.planning.names import unknown_name
from harness.settings import ImplementationSpec
from harness.support import Support, support_matrix, why
from harness.worker import ForkServer

_EASY_CASE = {"hidden_size": 256, "num_heads": 4, "seq_len": 128}


def show_matrix(more_dirs: Sequence[Path]) -> None:
    """Print who claims to do what, on each device.

    What holds for a device that nobody can use is said once below, and lines that say only that are
    left out.
    """
    console = Console()
    specs = tuple(known_implementations(more_dirs))
    columns = ("implementation", "device", "dtypes", "modes", "masks", "head_dim", "also")
    table = table_of(*columns)
    supports = support_matrix(ForkServer(), specs, DEVICES)
    shared = {device: _said_of_device(supports, device) for device in DEVICES}
    for support in supports:
        own = tuple(reason for reason in support.reasons if reason not in shared[support.device])
        if support.dtypes or own:
            table.add_row(*(Text(cell) for cell in _cells(support, own)))
    show_table(console, table)
    for device, reasons in shared.items():
        for reason in reasons:
            console.print(Text(f"{device}: {reason}", style="dim"))


def _said_of_device(supports: Sequence[Support], device: str) -> tuple[str, ...]:
    """Reasons that most give where nobody can do anything: they say something about the device."""
    asked = [support for support in supports if support.device == device]
    if any(support.dtypes for support in asked):
        return ()
    said = Counter(reason for support in asked for reason in support.reasons)
    return tuple(reason for reason, times in said.items() if times > len(asked) / 2)


def _cells(support: Support, own: Sequence[str]) -> tuple[str, ...]:
    """A line of the matrix.

    Args:
        own: The reasons that not everyone gives.
    """
    name, device = support.implementation, support.device
    if not support.dtypes:
        return name, device, f"no: {'; '.join(own)}", "", "", "", ""
    also = {
        "grouped heads": support.grouped_heads,
        "dropout": support.dropout,
        **{f"scope {scope}": scope != "attention" for scope in support.scopes},
    }
    return (
        name,
        device,
        ", ".join(support.dtypes),
        ", ".join(support.modes),
        ", ".join(support.masks) or "none",
        support.head_dims,
        ", ".join(text for text, holds in also.items() if holds),
    )


def show_why(name: str, words: Sequence[str], more_dirs: Sequence[Path]) -> None:
    """Print why an implementation can't do a case, or that it says it can.

    Args:
        words: ``AXIS=VALUE``; what is left out is that of an easy case.
    """
    asked = {axis: number_or_text(value) for axis, value in read_axes(words).items()}
    case = Case.from_dict(_EASY_CASE | asked)
    reasons = why(ForkServer(), _named(name, more_dirs), case)
    console = Console()
    said = [f"{name} can't do {case.id}:", *(f"  {r}" for r in reasons)]
    for line in said if reasons else [f"{name} says that it can do {case.id}"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_probe(names: Sequence[str], more_dirs: Sequence[Path]) -> bool:
    """Hold claims against tiny real calls on the CPU; returns whether all of them hold."""
    specs = tuple(_named(name, more_dirs) for name in names)
    cases, console = probe_cases("cpu"), Console()
    findings = probe(ForkServer(), specs, cases)
    for finding in findings:
        console.print(str(finding), markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(specs) * len(cases)} claims tried, {len(findings)} do not hold", highlight=False
    )
    return not findings


def _named(name: str, more_dirs: Sequence[Path]) -> ImplementationSpec:
    known = {spec.name: spec for spec in known_implementations(more_dirs)}
    if name not in known:
        raise unknown_name("implementation", "the name of an implementation", name, known)
    return known[name]
