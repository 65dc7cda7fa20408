"""Durations and sizes as people type them: ``5ms``, ``90s``, ``1.5h``; ``512MiB``, ``8GiB``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from harness.errors import InvalidValueError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def read_seconds(argument: str, value: object) -> float | None:
    """Seconds; a bare number is seconds already, null stays null.

    Raises:
        InvalidValueError: not a positive duration.
    """
    if value is None:
        return None
    return _scaled(argument, value, _SECONDS, "a duration, e.g. 90s, 10m or 1.5h")


def read_bytes(argument: str, value: object) -> int | None:
    """Bytes; a bare number is bytes already, null stays null.

    Raises:
        InvalidValueError: not a positive size.
    """
    if value is None:
        return None
    return int(_scaled(argument, value, _BYTES, "a size, e.g. 512MiB or 8GiB"))


def _scaled(argument: str, value: object, units: Mapping[str, float], expected: str) -> float:
    text = "" if isinstance(value, bool) else str(value).strip()
    match = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([A-Za-z]*)", text)
    if match is None or (match[2] and match[2] not in units):
        raise InvalidValueError(argument, expected, value)
    try:
        amount = float(match[1]) * units.get(match[2], 1)
    except ValueError:
        raise InvalidValueError(argument, expected, value) from None
    if not 0 < amount < math.inf:
        raise InvalidValueError(argument, expected, value)
    return amount
