"""Which path computes a case: the one that was forced, or the fastest that fits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.attention import AttentionConfig, DType
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


# Tiles are 16 queries by 16 keys by 32 channels: with fewer they multiply zeros.
_LEAST_TILE_QUERIES = 32
_LEAST_TILE_CHANNELS = 32


def select(
    runnable: tuple[Path, ...], forced: Path | None, c: AttentionConfig, precision: Precision
) -> Selection:
    """The path for a config and precision. ``runnable`` must not be empty."""
    path = forced if forced is not None else _fastest(runnable, c)
    return Selection(path, _products(c.dtype, precision))


def _fastest(runnable: tuple[Path, ...], c: AttentionConfig) -> Path:
    suits_tiles = c.seq_len >= _LEAST_TILE_QUERIES and c.head_dim >= _LEAST_TILE_CHANNELS
    return max(path for path in runnable if suits_tiles or path is not Path.AMX)


def _products(dtype: DType, precision: Precision) -> int:
    if dtype is DType.BFLOAT16:
        return 1
    if dtype is DType.FLOAT16 or precision is Precision.BF16X3:
        return 3
    return 6
