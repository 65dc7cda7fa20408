"""The implementations of a sweep, one variant per combination of the options that list values.

``implementations.mine.options.block=64,128`` measures ``mine[block=64]`` and ``mine[block=128]``
side by side. An option with one plain value changes the implementation and leaves its name alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from harness.errors import InvalidValueError
from harness.planning.config_schema import ImplementationSchema
from harness.planning.names import unknown_name
from harness.settings import ImplementationSpec

_KEYS = tuple(f.name for f in fields(ImplementationSchema))


@dataclass(frozen=True)
class Variant:
    """What is measured under one name.

    Args:
        base_name: Name of the implementation without swept options.
        overrides: The overrides that choose exactly this variant.
    """

    base_name: str
    spec: ImplementationSpec
    overrides: tuple[str, ...] = ()


def read_variants(implementations: Mapping[str, Any]) -> Iterator[Variant]:
    """All variants of all implementations, in order.

    Raises:
        InvalidValueError: there is none, or an entry has no target or an unknown key.
    """
    if not implementations:
        raise InvalidValueError("implementation", "at least one implementation", "none")
    for name, entry in implementations.items():
        _check_entry(name, entry, [other for other in implementations if other != name])
        yield from _variants(name, str(entry["target"]), entry.get("options") or {})


def _check_entry(name: str, entry: Any, others: list[str]) -> None:
    if not isinstance(entry, Mapping) or not str(entry.get("target") or "").strip():
        raise InvalidValueError(
            f"implementations.{name}",
            "one chosen with implementation=[...], or a new one with "
            f"+implementations.{name}.target=module:Class",
            entry,
            others,
        )
    for key in entry:
        if key not in _KEYS:
            raise unknown_name(f"implementations.{name}", "a key", str(key), _KEYS)


def _variants(name: str, target: str, options: Mapping[str, Any]) -> Iterator[Variant]:
    swept = {option: values for option, values in options.items() if isinstance(values, list)}
    for combination in itertools.product(*swept.values()):
        chosen = dict(zip(swept, combination, strict=True))
        label = ",".join(f"{option}={value}" for option, value in chosen.items())
        yield Variant(
            name,
            ImplementationSpec(
                f"{name}[{label}]" if chosen else name, target, {**options, **chosen}
            ),
            tuple(
                f"++implementations.{name}.options.{option}=[{value}]"
                for option, value in chosen.items()
            ),
        )
