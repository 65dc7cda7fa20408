"""Which path computes a case: the one that was forced, or the fastest that fits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.attention import AttentionConfig, DType
from implementations.fused.native import Path


class Precision(StrEnum):
    """How exact float32 products are; other dtypes are as exact as their output shows.

    Two bfloat16 parts hold 16 of a number's 24 bits, so that the error of a score grows with the
    score: what is 1e-5 of the output for scores of 5 is several times that for the scores of
    hundreds that an outlier channel makes. The fourth product of two parts does not help much, for
    what the parts leave out is as large. Only a third part of queries and keys would, and six
    products for each score cost half of what lies between this and ``full``.
    """

    FULL = "full"  # float32 accuracy
    BF16X3 = "bf16x3"  # three bfloat16 products for one: the class of TF32


@dataclass(frozen=True)
class Selection:
    """A path, and how many bfloat16 products stand for one product on AMX."""

    path: Path
    products: int

    def on_vectors(self) -> Selection:
        """What computes values that tiles can't hold."""
        return Selection(Path.AVX512, 1)

    def describe(self, dtype: DType) -> str:
        factor = f" x{self.products}" if self.path is Path.AMX and self.products > 1 else ""
        return f"fused {self.path.name.lower()} {dtype}{factor}"


# Tiles come in blocks of 32 queries and 64 keys, of 32 channels each. What is missing is multiplied
# as zeros, and vectors are faster until enough is there: the sooner, the fewer products stand for
# one. Where that is was measured with both paths forced.
# (queries, keys) by products
_LEAST_FOR_TILES = {1: (5, 24), 3: (16, 56), 4: (16, 56), 6: (96, 96)}
_LEAST_TILE_CHANNELS = 32


def select(
    runnable: tuple[Path, ...], forced: Path | None, c: AttentionConfig, precision: Precision
) -> Selection:
    """The path for a config and precision. ``runnable`` must not be empty."""
    products = _products(c.dtype, precision)
    path = forced if forced is not None else _fastest(runnable, c, products)
    return Selection(path, products)


def _fastest(runnable: tuple[Path, ...], c: AttentionConfig, products: int) -> Path:
    queries, keys = _LEAST_FOR_TILES[products]
    fills_tiles = c.seq_len >= queries and c.kv_seq_len >= keys
    suits_tiles = fills_tiles and c.head_dim >= _LEAST_TILE_CHANNELS
    return max(path for path in runnable if suits_tiles or path is not Path.AMX)


def _products(dtype: DType, precision: Precision) -> int:
    if dtype is DType.BFLOAT16:
        return 1
    if dtype is DType.FLOAT16:
        return 4  # two parts hold its 11 bits, so that four products are exact
    if precision is Precision.BF16X3:
        return 3
    return 6
