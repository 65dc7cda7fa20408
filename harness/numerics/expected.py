"""What an output should be, which part of it is certified, and how to name a place in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.interface import Contract

SLICE = "slice"  # the axis over all key heads of all batch entries


@dataclass(frozen=True)
class Selection:
    """The part of a large output that is certified: some entries along one axis.

    Args:
        axis: Name of the axis.
        positions: ``[n]`` entries.
        said: In words, as ``128 of 32768 rows``.
        whole: Shape in which the output has the axis; None where it is its own.
        num_kv_heads: Into which the axis ``slice`` is split.
    """

    axis: str
    positions: Tensor
    said: str
    whole: tuple[int, ...] | None = None
    num_kv_heads: int = 1

    def of(self, output: Tensor, axes: tuple[str, ...]) -> Tensor:
        """The selected elements of a whole output."""
        shaped = output if self.whole is None else output.reshape(self.whole)
        return shaped.index_select(axes.index(self.axis), self.positions.to(output.device))

    def place(self, named: dict[str, int]) -> dict[str, int]:
        """Indices within the selection turned into those of the whole output."""
        if self.axis not in named:
            return named
        at = int(self.positions[named[self.axis]])
        if self.axis != SLICE:
            return {**named, self.axis: at}
        batch, head = divmod(at, self.num_kv_heads)
        others = {axis: index for axis, index in named.items() if axis != SLICE}
        return {"batch": batch, "kv_head": head, **others}


@dataclass(frozen=True)
class Expected:
    """What one output should be, and how far rounding may move it; all of one shape.

    Args:
        value: Float64.
        scaled: What relative errors are measured against: P|V| for ``o``, likewise for others.
        bound: The largest error that a contract allows, element by element.
        axes: Name of each axis, for locations.
        head_axes: Axes that name a head; empty where an output has none.
        row_axes: Axes that name a row; never the last axis.
        shape: Shape in which an implementation gives the output; reshaped to ``value``'s.
        dtype: In which it gives it.
        selection: Which part of the output ``value`` is; None for all of it.
        may_be_nan: Where NaN is no fault though the exact value is finite: an input of this head is
            NaN or infinite, and whether it gets past a mask is a policy. None: nowhere.
        yardstick: Largest error of the same-dtype plain softmax attention.
    """

    value: Tensor
    scaled: Tensor
    bound: Callable[[Contract], Tensor]
    axes: tuple[str, ...]
    head_axes: tuple[int, ...]
    row_axes: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    selection: Selection | None = None
    may_be_nan: Tensor | None = None
    yardstick: float | None = None

    @property
    def certified(self) -> str:
        """What is compared, in words."""
        return "all rows" if self.selection is None else self.selection.said

    def part_of(self, output: Tensor) -> Tensor:
        """The elements of an output that are compared, on the CPU, in its own dtype."""
        output = output.detach()
        if self.selection is not None:
            output = self.selection.of(output, self.axes)
        return output.cpu().reshape(self.value.shape)

    def location(self, index: tuple[int, ...], axes: tuple[int, ...] | None = None) -> str:
        """An index along some axes, all unless said, as ``batch 0, head 3, query 511``."""
        chosen = range(len(self.axes)) if axes is None else axes
        named = {self.axes[axis]: int(i) for axis, i in zip(chosen, index, strict=True)}
        if self.selection is not None:
            named = self.selection.place(named)
        return ", ".join(f"{axis} {i}" for axis, i in named.items())

    def element(self, flat_index: int) -> str:
        """Where an element stands."""
        # not torch's unravel_index: its first call imports sympy, which takes half a second
        at = np.unravel_index(flat_index, tuple(self.value.shape))
        return self.location(tuple(int(i) for i in at))


def error_of(got: Tensor, expected: Expected) -> Tensor:
    """Signed error in float64; 0 where the exact value is not finite, for patterns tell there."""
    return masked_error(got, expected.value, expected.may_be_nan)


def masked_error(got: Tensor, value: Tensor, may_be_nan: Tensor | None) -> Tensor:
    """The same of any part of an output."""
    error = got.double() - value
    usable = value.isfinite()
    if may_be_nan is not None:
        usable = usable & ~(may_be_nan & got.isnan())
    return error if bool(usable.all()) else torch.where(usable, error, 0.0)
