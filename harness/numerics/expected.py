"""What an output should be, which part of it is certified, and how to name a place in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.interface import Contract


@dataclass(frozen=True)
class Selection:
    """The part of a long output that is certified: some rows of all heads, or all rows of some.

    Args:
        rows: ``[n]`` positions along the axis ``query``.
        slices: Pairs of batch entry and head, in place of the two leading axes.
    """

    rows: Tensor | None = None
    slices: tuple[tuple[int, int], ...] = ()

    def of(self, output: Tensor, axes: tuple[str, ...]) -> Tensor:
        """The selected elements of a whole output."""
        if self.rows is not None:
            return output.index_select(axes.index("query"), self.rows.to(output.device))
        return torch.stack([output[pair] for pair in self.slices])

    def place(self, named: dict[str, int]) -> dict[str, int]:
        """Indices within the selection turned into those of the whole output."""
        if self.rows is not None:
            return {**named, "query": int(self.rows[named["query"]])} if "query" in named else named
        if "slice" not in named:
            return named
        batch, head = self.slices[named["slice"]]
        others = {axis: index for axis, index in named.items() if axis != "slice"}
        return {"batch": batch, "kv_head": head, **others}

    def __str__(self) -> str:
        if self.rows is not None:
            return f"{len(self.rows)} rows"
        return f"{len(self.slices)} key heads"


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
        dtype: In which it gives it; None where it may choose.
        certified: Which rows are compared, in words.
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
    dtype: torch.dtype | None
    certified: str = "all rows"
    selection: Selection | None = None
    may_be_nan: Tensor | None = None
    yardstick: float | None = None

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
