"""Everything that a report of one run says, computed once and read by every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from harness.analysis.cells import cells_of, varying_axes
from harness.analysis.compare import BASELINE, DEFAULT_MARGIN, compare
from harness.analysis.decide import Decision, decide
from harness.analysis.judging import judging_share
from harness.analysis.kernels import shared_kernels
from harness.analysis.mask_forms import mixed_mask_forms
from harness.analysis.pairs import control_of_run
from harness.analysis.winners import winners
from harness.report.numbers import byte_count, count, percent
from harness.rows import Status
from harness.statistics.verdicts import Control
from harness.store import CONFIG_FILE, load, read_environment, read_left_out


@dataclass(frozen=True)
class Content:
    """One run, analysed.

    Args:
        cells: One line per case and implementation; see ``harness.analysis.cells``.
        comparisons: Each implementation against ``against``.
        winners: The best set of each case.
        axes: Axes that vary; what tells one case from another.
        wanted_margin: Margin that the run was configured with.
    """

    run: Path
    rows: pd.DataFrame
    cells: pd.DataFrame
    comparisons: pd.DataFrame
    winners: pd.DataFrame
    axes: tuple[str, ...]
    control: Control
    wanted_margin: float
    environment: Mapping[str, Any]
    left_out: tuple[tuple[Mapping[str, Any], str], ...]

    @property
    def margin(self) -> float:
        return self.control.margin(self.wanted_margin)

    @cached_property
    def decision(self) -> Decision:
        """What to use, without constraints, every case weighing the same."""
        return decide(self.rows, margin=self.wanted_margin)

    @property
    def implementations(self) -> list[str]:
        """Those with an ``ok`` cell, the fastest on the whole first, then the others."""
        ranks = self.cells.groupby("case_key")["median_s"].rank()
        order = ranks.groupby(self.cells["implementation"]).median()
        return [str(name) for name in order.sort_values(kind="stable", na_position="last").index]

    @property
    def baseline(self) -> str | None:
        """The implementation that most comparisons are made against."""
        found = self.comparisons["against"].mode()
        return str(found.iloc[0]) if len(found) else None


def content_of(run: Path, against: str = BASELINE, margin: float | None = None) -> Content:
    """Analyse a stored run.

    Args:
        margin: Smallest difference that matters; the run's own configuration when left out.

    Raises:
        StoreError: ``run`` is no run.
        InvalidValueError: ``against`` is no implementation of it.
    """
    run = Path(run)
    rows = load(run)
    wanted = configured_margin(run) if margin is None else margin
    cells = cells_of(rows)
    return Content(
        run=run,
        rows=rows,
        cells=cells,
        comparisons=compare(rows, against, wanted),
        winners=winners(rows, wanted),
        axes=tuple(varying_axes(cells)),
        control=control_of_run(rows),
        wanted_margin=wanted,
        environment=read_environment(run),
        left_out=tuple(read_left_out(run)),
    )


def configured_margin(run: Path) -> float:
    """Margin that the run was measured with; the default for runs that don't say."""
    path = Path(run) / CONFIG_FILE
    config = OmegaConf.load(path) if path.exists() else OmegaConf.create()
    measure = config.get("measure") if isinstance(config, DictConfig) else None
    return float((measure or {}).get("margin", DEFAULT_MARGIN))


def header_lines(content: Content) -> Iterator[str]:
    """What a reader must know before any figure; an untrusted run says so first."""
    control = content.control
    if not control.trusted:
        yield (
            f"UNTRUSTED: the baseline differs from its own copy in {control.num_rejected} of "
            f"{control.num_comparisons} comparisons, where chance explains {control.allowed}; "
            "only differences beyond the raised margin are called."
        )
    yield control_line(content)
    yield machine_line(content.environment)
    yield _rows_line(content)
    yield from _flag_lines(content)
    yield from _kernel_lines(content)
    yield from _mask_lines(content)


def control_line(content: Content) -> str:
    """The session's own control: ``3 of 120 shadow comparisons rejected, ...``."""
    control = content.control
    if not control.num_comparisons:
        return "No shadow comparison was made: this run has no control of its own."
    return (
        f"{control.num_rejected} of {count(control.num_comparisons, 'shadow comparison')} "
        f"rejected, noise floor {percent(control.noise_floor)}, margin {percent(content.margin)}"
    )


def machine_line(environment: Mapping[str, Any]) -> str:
    """Processor, cards, memory, torch and system in one line."""
    hardware, software = environment.get("hardware", {}), environment.get("software", {})
    cpu = hardware.get("cpu", {})
    if not isinstance(cpu, Mapping) or not cpu:
        return "Machine: not recorded."
    parts = [
        str(cpu.get("model")),
        f"{cpu.get('cores_usable')} of {cpu.get('cores_logical')} cores",
        *(str(gpu.get("name")) for gpu in hardware.get("gpus", [])),
        byte_count(hardware.get("memory_bytes")),
        f"torch {software.get('packages', {}).get('torch')}",
        f"{software.get('system')} {software.get('kernel')}",
        *(["virtual machine"] if cpu.get("virtual_machine") else []),
    ]
    return ", ".join(parts)


def _rows_line(content: Content) -> str:
    statuses = Counter(content.rows["status"])
    said = ", ".join(f"{statuses[status]} {status}" for status in Status if statuses[status])
    stops = Counter(reason for reason in content.rows["stop_reason"] if reason != "none")
    ended = ", ".join(f"{reason} {number}" for reason, number in sorted(stops.items()))
    passes = content.rows["pass_index"].nunique()
    cases = content.cells["case_key"].nunique()
    measured = f"{count(cases, 'case')} in {passes} {'pass' if passes == 1 else 'passes'}"
    share = judging_share(content.rows)
    parts = [measured, f"rows: {said}"]
    parts += [f"rounds ended by: {ended}"] if ended else []
    parts += [] if share is None else [f"checking against float64: {percent(share)} of the time"]
    return "; ".join(parts)


def _flag_lines(content: Content) -> Iterator[str]:
    """Each kind of flag once, with the number of cases that have it."""
    cases: dict[str, set[str]] = {}
    for key, text in zip(content.rows["case_key"], content.rows["flags"], strict=True):
        for flag in filter(None, text.split("; ")):
            cases.setdefault(flag.partition(":")[0], set()).add(key)
    if cases:
        said = ", ".join(
            f"{name} in {count(len(keys), 'case')}" for name, keys in sorted(cases.items())
        )
        yield f"flags: {said}"


def _kernel_lines(content: Content) -> Iterator[str]:
    """Names that ran the same kernel: a difference between them is not the kernel's."""
    for shared in shared_kernels(content.cells):
        names = " and ".join(shared.implementations)
        cases = count(shared.num_cases, "case")
        yield f"one kernel under several names: {names} ran {shared.kernel} in {cases}"


def _mask_lines(content: Content) -> Iterator[str]:
    """Masks that reached some as a flag and others as a tensor: a part of their difference."""
    for mixed in mixed_mask_forms(content.cells):
        yield f"one mask in several forms: {mixed} in {count(mixed.num_cases, 'case')}"
