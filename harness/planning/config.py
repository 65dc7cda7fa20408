"""What a sweep shall do: the one conversion from Hydra's configuration to the domain's types.

Strings end here. Hydra has composed conf/*.yaml with the command line and checked keys and types
against ``harness.planning.config_schema``; ``to_run_config`` checks the values and gives a frozen
``RunConfig``, which plan, sweep and worker read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.attention import Case
from harness.errors import InvalidValueError
from harness.machine import Machine
from harness.planning.axes import AXES, Axes, read_axis, read_point
from harness.planning.names import unknown_name
from harness.planning.quantities import read_bytes, read_seconds
from harness.planning.repro import Invocation, sweep_command, variant_words
from harness.planning.variants import Variant, read_variants
from harness.rows import Status
from harness.settings import ImplementationSpec, MeasureSettings


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole sweep, checked.

    Args:
        axes: Values of every axis; a point takes one of each.
        points: Paired points; each fixes some axes and is crossed with the others. Empty: none.
        implementations: What is measured on every point, in this order.
        baseline: Name of the implementation that the others are compared with.
        results_dir: Where runs are stored.
        name: Name of the new run's folder; None for a time stamp.
        resume: Folder of an existing run to add to; what it holds is not measured again.
        budget_s: The sweep ends after this time; None for no limit.
        memory_limit_bytes: Bound on a worker's memory; None for what the machine has.
        min_head_dim: Points with smaller heads are left out, with the reason.
        fail_on: A row with one of these makes the command's exit code 1.
        repro_words: By implementation, what a command that repeats it says besides the axes.
    """

    axes: Axes
    points: tuple[Axes, ...] = ()
    implementations: tuple[ImplementationSpec, ...]
    baseline: str
    measure: MeasureSettings = MeasureSettings()
    results_dir: Path = Path("results")
    name: str | None = None
    resume: Path | None = None
    budget_s: float | None = None
    memory_limit_bytes: int | None = None
    min_head_dim: int | None = None
    dry_run: bool = False
    fail_on: tuple[Status, ...] = ()
    machine: Machine = field(default_factory=Machine.here)
    repro_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def repro_command(self, case: Case, implementation: str) -> str:
        """The shell command that measures this case with this implementation alone."""
        return sweep_command(case, self.repro_words.get(implementation, ()))


def to_run_config(
    cfg: DictConfig, invocation: Invocation = Invocation(), machine: Machine | None = None
) -> RunConfig:
    """Check a composed configuration and convert it.

    Raises:
        InvalidValueError: a value is illegal, an axis is given twice, or nothing is to be measured.
    """
    values: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    points = tuple(_read_points(values))
    _refuse_axes_given_twice(points, invocation)
    variants = tuple(read_variants(values["implementations"]))
    measure = _read_measure(values["measure"])
    return RunConfig(
        axes={axis: read_axis(axis, values[axis]) for axis in AXES},
        points=points,
        implementations=tuple(variant.spec for variant in variants),
        baseline=_read_baseline(values["baseline"], variants),
        measure=measure,
        results_dir=Path(values["results_dir"]),
        name=_read_name(values["name"]),
        resume=None if values["run"] is None else Path(values["run"]),
        budget_s=read_seconds("budget", values["budget"]),
        memory_limit_bytes=read_bytes("memory_limit", values["memory_limit"]),
        min_head_dim=values["min_head_dim"],
        dry_run=values["dry_run"],
        fail_on=tuple(_read_status(name) for name in _as_list(values["fail_on"])),
        machine=machine or Machine.here(),
        repro_words={v.spec.name: variant_words(v, invocation, measure) for v in variants},
    )


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _read_points(values: Mapping[str, Any]) -> Iterator[Axes]:
    for name, shape in values["models"].items():
        yield read_point(f"models.{name}", shape)
    for index, point in enumerate(_as_list(values["points"])):
        yield read_point(f"points[{index}]", point)


def _refuse_axes_given_twice(points: tuple[Axes, ...], invocation: Invocation) -> None:
    """A typed axis that every point fixes anyway would be ignored; better say so."""
    for axis in AXES:
        if points and axis in invocation.keys and all(axis in point for point in points):
            raise InvalidValueError(
                axis, "to be given once (a model or point fixes it already)", "a second value"
            )


def _read_name(name: str | None) -> str | None:
    if name is not None and (Path(name).name != name or name.startswith(".")):
        raise InvalidValueError("name", "the name of a folder in results_dir", name)
    return name


def _read_status(name: object) -> Status:
    try:
        return Status(str(name))
    except ValueError:
        raise unknown_name("fail_on", "a status", str(name), Status) from None


def _read_baseline(wanted: Any, variants: tuple[Variant, ...]) -> str:
    """A name must be among the chosen; of a list, the first that is, else the first chosen."""
    names = [variant.spec.name for variant in variants]
    if isinstance(wanted, (list, tuple)):
        return next((str(name) for name in wanted if name in names), names[0])
    if wanted is None:
        return names[0]
    if wanted not in names:
        raise unknown_name("baseline", "one of the chosen implementations", str(wanted), names)
    return str(wanted)


_COUNTS = ("passes", "burst_calls", "input_sets", "max_rounds", "memory_repeats")


def _read_measure(values: Mapping[str, Any]) -> MeasureSettings:
    for key, value in values.items():
        least = 1 if key in _COUNTS else 0
        if not least <= value < math.inf:
            raise InvalidValueError(f"measure.{key}", f"a number of at least {least}", value)
    return MeasureSettings(**values)
