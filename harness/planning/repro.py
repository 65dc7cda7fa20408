"""The command that repeats one cell of a run, as short as it can be."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.attention import Case
from harness.errors import InvalidValueError
from harness.planning.variants import Variant
from harness.settings import MeasureSettings

# The default sweep lists several values of these, or the machine decides.
_ALWAYS_GIVEN = ("hidden_size", "num_heads", "seq_len", "threads")


@dataclass(frozen=True)
class Invocation:
    """How a sweep was called.

    Args:
        overrides: The overrides of the command line, as Hydra got them.
        measure: Chosen option of the group ``measure``.
        config_dir: The folder given with ``--config-dir``.
    """

    overrides: tuple[str, ...] = ()
    measure: str = "standard"
    config_dir: str | None = None

    @property
    def keys(self) -> frozenset[str]:
        """Keys and groups that were typed."""
        return frozenset(_key(override) for override in self.overrides)


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def sweep_command(case: Case, words: tuple[str, ...]) -> str:
    """The shell command that measures this case alone.

    Args:
        words: What it needs besides the case's axes; see ``variant_words``.
    """
    axes = [f"{axis}={value}" for axis, value in necessary_axes(case).items()]
    return shlex.join(["mha-bench", "sweep", *words, *axes])


def necessary_axes(case: Case) -> Mapping[str, Any]:
    """The axes without which the case would be another one."""
    axes = case.to_dict()
    for axis in tuple(axes):
        fewer = {name: value for name, value in axes.items() if name != axis}
        if axis not in _ALWAYS_GIVEN and _is_case(fewer, case):
            axes = fewer
    return axes


def _is_case(axes: Mapping[str, Any], case: Case) -> bool:
    try:
        return Case.from_dict(axes) == case
    except InvalidValueError:
        return False


# Presets and sweeps differ in these; the others are typed or nothing changes them.
_MEASURED_BY = ("passes", "budget_s", "precision")


def variant_words(
    variant: Variant, invocation: Invocation, measure: MeasureSettings
) -> tuple[str, ...]:
    """The part of a command that measures a variant alone, as it was measured in this sweep."""
    settings = [f"measure.{name}={getattr(measure, name):g}" for name in _MEASURED_BY]
    chosen = {_key(override) for override in (*variant.overrides, *settings)}
    kept = [
        override
        for override in invocation.overrides
        if _is_needed(_key(override), variant.base_name) and _key(override) not in chosen
    ]
    is_new = f"implementations.{variant.base_name}.target" in invocation.keys
    config_dir = ("--config-dir", invocation.config_dir) if invocation.config_dir else ()
    return (
        *config_dir,
        f"implementation={'[]' if is_new else variant.base_name}",
        f"measure={invocation.measure}",
        *settings,
        *kept,
        *variant.overrides,
    )


def _is_needed(key: str, implementation: str) -> bool:
    return key in ("memory_limit", "hydra.searchpath") or key.startswith(
        ("measure.", f"implementations.{implementation}.")
    )
