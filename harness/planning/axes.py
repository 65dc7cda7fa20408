"""The axes of a sweep: their names, and how one value of each is read.

A value comes as YAML and the command line give it (whole number, number, text or null) and leaves
as the same plain kinds, checked and in one spelling; ``Case.from_dict`` takes it from there. Null
is a value only where something can be derived: ``num_kv_heads``, ``head_dim``, ``kv_seq_len``,
``scale`` and ``threads``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from harness.choices import Allocator, Cache, DType, Mode, Scope, as_choice
from harness.distributions import check_distribution
from harness.errors import InvalidValueError
from harness.mask import Mask
from harness.planning.names import unknown_name

AxisValue: TypeAlias = int | float | str | None
DEVICES = ("cpu", "cuda")
Axes: TypeAlias = Mapping[str, tuple[AxisValue, ...]]
_Reader: TypeAlias = Callable[[str, object], AxisValue]


def _whole(minimum: int, *, derived: bool = False) -> _Reader:
    def read(axis: str, value: object) -> AxisValue:
        if value is None and derived:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            alternative = ", or null to derive it" if derived else ""
            expected = f"a whole number of at least {minimum}{alternative}{_spelling_hint(value)}"
            raise InvalidValueError(axis, expected, value)
        return value

    return read


def _spelling_hint(value: object) -> str:
    """What the writer of a near miss most likely meant."""
    if isinstance(value, float) and value.is_integer():
        return f" (write {int(value)}: 1e3 and 1.0 are not whole numbers here)"
    if isinstance(value, str) and re.fullmatch(r"[+-]?0\d+", value):
        return f" (write {int(value)}: a leading zero makes it text)"
    if value in ("None", "none", "nil"):
        return " (nothing is written null)"
    return ""


def _number(low: float, high: float, *, derived: bool = False) -> _Reader:
    def read(axis: str, value: object) -> AxisValue:
        if value is None and derived:
            return None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= float(value) < high:  # type: ignore[arg-type]
            bounds = "a finite number" if math.isinf(high) else f"a number in [{low:g}, {high:g})"
            alternative = ", or null to derive it" if derived else ""
            raise InvalidValueError(axis, bounds + alternative + _spelling_hint(value), value)
        return float(value)  # type: ignore[arg-type]

    return read


def _choice(kind: type[StrEnum]) -> _Reader:
    return lambda axis, value: as_choice(axis, kind, value).value


def _mask(axis: str, value: object) -> AxisValue:
    if not isinstance(value, str):
        raise InvalidValueError(axis, "the text form of a mask, e.g. none or causal", value)
    return str(Mask.parse(value))


def _device(axis: str, value: object) -> AxisValue:
    if value not in DEVICES:
        raise InvalidValueError(axis, "a device", value, DEVICES)
    return str(value)


def _distribution(_axis: str, value: object) -> AxisValue:
    check_distribution(str(value))
    return str(value)


_READERS: dict[str, _Reader] = {
    "hidden_size": _whole(1),
    "num_heads": _whole(1),
    "num_kv_heads": _whole(1, derived=True),
    "head_dim": _whole(1, derived=True),
    "seq_len": _whole(0),
    "kv_seq_len": _whole(0, derived=True),
    "batch_size": _whole(0),
    "dtype": _choice(DType),
    "mask": _mask,
    "scale": _number(-math.inf, math.inf, derived=True),
    "dropout_p": _number(0.0, 1.0),
    "scope": _choice(Scope),
    "mode": _choice(Mode),
    "device": _device,
    "threads": _whole(1, derived=True),
    "inputs": _distribution,
    "cache": _choice(Cache),
    "allocator": _choice(Allocator),
    "seed": _whole(0),
}

AXES = tuple(_READERS)


def read_axis(axis: str, values: object) -> tuple[AxisValue, ...]:
    """The values of one axis, each once, in the order given; a single value is a list of one.

    Raises:
        InvalidValueError: a value is not legal on this axis, or there is none.
    """
    listed = list(values) if isinstance(values, (list, tuple)) else [values]
    if not listed:
        raise InvalidValueError(axis, "at least one value", listed)
    read = _READERS[axis]
    return tuple(dict.fromkeys(read(axis, value) for value in listed))


def read_point(argument: str, point: object) -> Axes:
    """The axes that one paired point fixes; an axis of it may itself list several values.

    Raises:
        InvalidValueError: not a mapping from axes to legal values.
    """
    if not isinstance(point, Mapping) or not point:
        raise InvalidValueError(argument, "axes and their values, e.g. {hidden_size: 768}", point)
    require_axes(argument, point)
    return {str(axis): read_axis(str(axis), values) for axis, values in point.items()}


def require_axes(argument: str, names: Iterable[Any]) -> None:
    """Raise InvalidValueError for the first name that is no axis."""
    for name in names:
        if name not in _READERS:
            raise unknown_name(argument, "the name of an axis", str(name), AXES)
