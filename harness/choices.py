"""The closed choices of the sweep's axes, and the two checks that every axis shares."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from harness.errors import InvalidValueError

_Choice = TypeVar("_Choice", bound=StrEnum)


class DType(StrEnum):
    """Element types of the inputs and outputs, by torch's names."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"

    @property
    def itemsize_bytes(self) -> int:
        return {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}[self.value]

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest, u in numerical analysis."""
        return 2.0 ** -{"float32": 24, "bfloat16": 8, "float16": 11, "float64": 53}[self.value]


class Mode(StrEnum):
    """What one timed call does."""

    FORWARD = "forward"  # no gradient is recorded
    FORWARD_TRAIN = "forward_train"  # the graph is recorded and dropped
    BACKWARD = "backward"  # gradients from a graph that was built outside the timed call
    FORWARD_BACKWARD = "forward_backward"

    @property
    def is_training(self) -> bool:
        return self is not Mode.FORWARD

    @property
    def has_gradients(self) -> bool:
        return self in (Mode.BACKWARD, Mode.FORWARD_BACKWARD)


class Scope(StrEnum):
    """How much of a transformer layer one call computes."""

    ATTENTION = "attention"  # q, k, v to o
    LAYER = "layer"  # x to y: projections, attention, concatenation, output projection


class Cache(StrEnum):
    """State of the processor's caches when a call starts."""

    WARM = "warm"
    COLD = "cold"


class Allocator(StrEnum):
    """Behaviour of the CPU memory allocator while timing."""

    REUSE = "reuse"  # freed pages stay mapped: no page faults in the timed call
    SYSTEM = "system"  # the C library's defaults


def as_choice(argument: str, kind: type[_Choice], value: object) -> _Choice:
    """The member of ``kind`` that ``value`` names.

    Raises:
        InvalidValueError: no member has that name; the message lists them.
    """
    try:
        return kind(str(value))
    except ValueError:
        raise InvalidValueError(
            argument, f"a {argument}", value, [member.value for member in kind]
        ) from None


def require_int(argument: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidValueError(argument, f"a whole number of at least {minimum}", value)
