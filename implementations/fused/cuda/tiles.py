"""The tile sizes to choose from, by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from harness.interface import AttentionConfig, DType, InvalidValueError

SMALLEST_TILE = 16  # rows, of a product on tensor cores


@dataclass(frozen=True)
class Tiles:
    """Sizes of a tile, and how a program runs it.

    Args:
        queries: Rows of queries.
        keys: Rows of keys.
        stages: Tiles that are on their way from memory at once.
        by_descriptors: Whether the tensors that a loop walks through come by tensor descriptors,
            where they permit it; see ``descriptors``.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    by_descriptors: bool = False

    def __str__(self) -> str:
        return f"{self.queries}x{self.keys}w{self.warps}s{self.stages}{'d' * self.by_descriptors}"

    def loading(self, by_descriptors: bool) -> Tiles:
        """The same sizes, loaded that way."""
        return replace(self, by_descriptors=by_descriptors)


@dataclass(frozen=True)
class TileSet:
    """The tiles of the three kernels that have a choice."""

    forward: Tiles
    key_gradients: Tiles
    query_gradients: Tiles

    @classmethod
    def of(cls, tiles: Tiles) -> TileSet:
        """The same tiles for all."""
        return cls(tiles, tiles, tiles)


Table: TypeAlias = dict[int, tuple[Tiles, ...]]

# Few, and far apart: each costs a compilation. By the largest BLOCK_DIM that they are meant for.
# The first of a row runs where nothing is tried, so it fits cards with 99 KiB of shared memory.
# Left out is what spills many registers, by ptxas -v for sm_80 and sm_90.
_FEW_QUERIES = (Tiles(16, 64, 4, 2), Tiles(16, 128, 4, 2), Tiles(16, 32, 4, 2))
_FORWARD: Table = {
    64: (
        Tiles(64, 64, 4, 3),
        Tiles(128, 64, 4, 3),
        Tiles(128, 128, 8, 3),
        Tiles(128, 64, 8, 3),
    ),
    128: (
        Tiles(64, 64, 4, 2),
        Tiles(128, 64, 8, 3),
        Tiles(128, 128, 8, 2),
    ),
    256: (Tiles(64, 32, 4, 1), Tiles(64, 64, 4, 2), Tiles(128, 64, 8, 2)),
}
_KEY_GRADIENTS: Table = {
    64: (Tiles(32, 128, 8, 2), Tiles(32, 64, 4, 2), Tiles(64, 128, 8, 2)),
    128: (Tiles(32, 64, 8, 2), Tiles(32, 128, 8, 2), Tiles(64, 64, 8, 1)),
    256: (Tiles(32, 32, 4, 1), Tiles(64, 64, 8, 1), Tiles(32, 64, 8, 1)),
}
_QUERY_GRADIENTS: Table = {
    64: (Tiles(64, 64, 4, 2), Tiles(64, 128, 8, 2), Tiles(128, 64, 8, 2)),
    128: (Tiles(64, 64, 8, 1), Tiles(64, 64, 4, 2), Tiles(64, 128, 8, 2)),
    256: (Tiles(32, 32, 4, 1), Tiles(64, 64, 8, 1), Tiles(32, 64, 8, 1)),
}
# Float32 is multiplied element by element: larger tiles take minutes to compile.
_FLOAT32: Table = {
    64: (Tiles(32, 32, 4, 2), Tiles(64, 32, 8, 2)),
    128: (Tiles(32, 32, 8, 1), Tiles(32, 32, 8, 2)),
    256: (Tiles(16, 16, 4, 1), Tiles(16, 32, 8, 1)),
}
_TABLES = (_FLOAT32, _FORWARD, _KEY_GRADIENTS, _QUERY_GRADIENTS)
_GROUPS = (_FEW_QUERIES, *(group for table in _TABLES for group in table.values()))
NAMED = {
    str(tiles.loading(by_descriptors)): tiles.loading(by_descriptors)
    for group in _GROUPS
    for tiles in group
    for by_descriptors in (False, True)
}


def tiles_named(name: str) -> Tiles:
    """Tiles by name.

    Raises:
        InvalidValueError: no tiles have that name.
    """
    if name not in NAMED:
        plain = sorted(name for name, tiles in NAMED.items() if not tiles.by_descriptors)
        expected = "a size of tiles, with a d behind it where loads go by tensor descriptors"
        raise InvalidValueError("tiles", expected, name, ["auto", *plain])
    return NAMED[name]


def forward_tiles(c: AttentionConfig) -> tuple[Tiles, ...]:
    """Tiles to try for the forward pass; the first runs where nothing is tried."""
    if has_few_queries(c):
        return _FEW_QUERIES if c.dtype is not DType.FLOAT32 else _FLOAT32[256]
    return _of_width(_FORWARD, c)


def key_gradient_tiles(c: AttentionConfig) -> tuple[Tiles, ...]:
    """The same for the gradients of keys and values, whose two sums take twice the registers."""
    return _of_width(_KEY_GRADIENTS, c)


def query_gradient_tiles(c: AttentionConfig) -> tuple[Tiles, ...]:
    """The same for the gradients of queries."""
    return _of_width(_QUERY_GRADIENTS, c)


def has_few_queries(c: AttentionConfig) -> bool:
    """Whether all queries of the heads that share a key head fit one small tile."""
    return c.seq_len * c.group_size <= SMALLEST_TILE


def block_dim(c: AttentionConfig) -> int:
    """Columns of a tile: head_dim, filled up to what a tensor core and a shape of Triton need."""
    return max(SMALLEST_TILE, 1 << (c.head_dim - 1).bit_length())


def _of_width(table: Table, c: AttentionConfig) -> tuple[Tiles, ...]:
    table = _FLOAT32 if c.dtype is DType.FLOAT32 else table
    width = next(width for width in table if block_dim(c) <= width)
    return table[width]
