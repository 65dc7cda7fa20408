"""Which path computes a case: the one that was forced, or the fastest that fits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.attention import DType
from implementations.fused.native import Path


class Precision(StrEnum):
    """How exact float32 products are; other dtypes are as exact as their output shows."""

    FULL = "full"  # float32 accuracy
    BF16X3 = "bf16x3"  # three bfloat16 products for one: about 1e-5 relative, the class of TF32


@dataclass(frozen=True)
class Selection:
    """A path, and how many bfloat16 products stand for one product on AMX."""

    path: Path
    products: int

    def describe(self, dtype: DType) -> str:
        factor = f" x{self.products}" if self.path is Path.AMX and self.products > 1 else ""
        return f"fused {self.path.name.lower()} {dtype}{factor}"


def select(
    runnable: tuple[Path, ...], forced: Path | None, dtype: DType, precision: Precision
) -> Selection:
    """The path for a dtype and precision. ``runnable`` must not be empty."""
    path = forced if forced is not None else max(p for p in runnable)
    return Selection(path, _products(dtype, precision))


def _products(dtype: DType, precision: Precision) -> int:
    if dtype is DType.BFLOAT16:
        return 1
    if dtype is DType.FLOAT16 or precision is Precision.BF16X3:
        return 3
    return 6
