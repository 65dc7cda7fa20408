"""Planted defects of the arithmetic: keys lost, scales, groups, precision, the online softmax."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from harness.attention import AttentionConfig, DType
from harness.conformance.planted.sound import TILE, Sound, rounded_to

_NOT_BFLOAT16 = frozenset({DType.FLOAT32, DType.FLOAT16})


class DropsLastKey(Sound):
    """drops the last key"""

    def tiles(self, num_keys: int) -> list[slice]:
        return super().tiles(num_keys - 1 if num_keys > 1 else num_keys)


class DropsLastKeyOfRaggedTile(Sound):
    """drops the last key where the last tile is not full"""

    def tiles(self, num_keys: int) -> list[slice]:
        tiles = super().tiles(num_keys)
        if num_keys > TILE and num_keys % TILE > 1:
            tiles[-1] = slice(tiles[-1].start, num_keys - 1)
        return tiles


class DropsRaggedTile(Sound):
    """drops the keys after the last full tile"""

    def tiles(self, num_keys: int) -> list[slice]:
        tiles = super().tiles(num_keys)
        return tiles[:-1] if num_keys > TILE and num_keys % TILE else tiles


class LeavesTailOfQueries(Sound):
    """leaves the queries after the last full tile at zero"""

    def stored(self, output: Tensor, dtype: torch.dtype) -> Tensor:
        length = output.shape[2]
        full = length // TILE * TILE if length > TILE else length
        row = torch.arange(length)[:, None]
        return torch.where(row < full, output, 0.0).to(dtype)


class OnlyMultiplesOfEight(Sound):
    """leaves out channels beyond a multiple of 8 from the scores"""

    def scaled(self, q: Tensor, c: AttentionConfig) -> Tensor:
        used = c.head_dim // 8 * 8 if c.head_dim > 8 else c.head_dim
        return super().scaled(q, c) * (torch.arange(c.head_dim) < used)


class ScaleOffByOnePercent(Sound):
    """scale off by 1 %"""

    factor: ClassVar[float] = 1.01

    def scaled(self, q: Tensor, c: AttentionConfig) -> Tensor:
        return super().scaled(q, c) * self.factor


class ScaleOffByOneThousandth(ScaleOffByOnePercent):
    """scale off by 0.1 %"""

    factor = 1.001
    seen_in = _NOT_BFLOAT16


class NoScale(Sound):
    """no scale"""

    def scaled(self, q: Tensor, c: AttentionConfig) -> Tensor:
        return q


class ScaleOfWholeWidth(Sound):
    """scale by the hidden size instead of the head's"""

    def scaled(self, q: Tensor, c: AttentionConfig) -> Tensor:
        if not c.has_default_scale:
            return super().scaled(q, c)
        return q / math.sqrt(c.num_heads * c.head_dim)


class IgnoresScale(Sound):
    """always the default scale"""

    def scaled(self, q: Tensor, c: AttentionConfig) -> Tensor:
        return q / math.sqrt(c.head_dim)


class GroupsInterleaved(Sound):
    """query head i on key head i % G instead of i // (H / G)"""

    def kv_heads(self, c: AttentionConfig) -> Tensor:
        return torch.arange(c.num_heads) % c.num_kv_heads


class RoundsScores(Sound):
    """scores rounded to the inputs' dtype (float32: to bfloat16)"""

    def scores(self, scores: Tensor, c: AttentionConfig, dtype: torch.dtype) -> Tensor:
        return rounded_to(scores, dtype)


class LowAccumulator(Sound):
    """output accumulated in the inputs' dtype (float32: in bfloat16)"""

    def accumulated(self, weighted: Tensor, dtype: torch.dtype) -> Tensor:
        return rounded_to(weighted, dtype)


class RoundsWeightsTwice(Sound):
    """weights rounded to bfloat16 in float32 and float16"""

    seen_in = _NOT_BFLOAT16

    def weights(self, weights: Tensor, dtype: torch.dtype) -> Tensor:
        return weights.bfloat16().to(weights.dtype)


class CrudeExponential(Sound):
    """exponential with a relative error of 3e-4"""

    seen_in = frozenset({DType.FLOAT32})

    def weights(self, weights: Tensor, dtype: torch.dtype) -> Tensor:
        return weights * (1 + 3e-4 * torch.sin(40 * weights.detach()))


class TruncatesOutput(Sound):
    """output cut off towards zero instead of rounded (float32: to 20 bits)"""

    def stored(self, output: Tensor, dtype: torch.dtype) -> Tensor:
        dropped = {torch.float32: 4, torch.bfloat16: 16, torch.float16: 13}.get(dtype, 0)
        cut = (output.detach().float().view(torch.int32) >> dropped << dropped).view(torch.float32)
        return (output + (cut - output).detach()).to(dtype)


class ForgetsToRescale(Sound):
    """earlier tiles not shrunk when a larger maximum turns up"""

    def kept(self, factor: Tensor) -> Tensor:
        return torch.where(factor > 0, 1.0, factor)


class NoMaximum(Sound):
    """exponentials without subtracting the maximum"""

    def maximum(self, largest: Tensor, scores: Tensor) -> Tensor:
        return torch.zeros_like(largest)


class MaximumStartsTooHigh(Sound):
    """running maximum starts at -50 instead of minus infinity"""

    first_maximum = -50.0


class SumStartsAtEpsilon(Sound):
    """a constant of 0.001 added to the sum of weights"""

    seen_in = _NOT_BFLOAT16

    def normalised(self, weighted: Tensor, total: Tensor) -> Tensor:
        return weighted / (total + 1e-3)


class LogSumExpToBaseTwo(Sound):
    """log-sum-exp to base 2"""

    def lse(self, largest: Tensor, total: Tensor) -> Tensor:
        return super().lse(largest, total) / math.log(2)


class LogSumExpWithoutMaximum(Sound):
    """maximum left out of the log-sum-exp"""

    def lse(self, largest: Tensor, total: Tensor) -> Tensor:
        return super().lse(torch.where(largest.isneginf(), largest, 0.0), total)


class LogSumExpOfNoKeys(Sound):
    """log-sum-exp of 0 in rows without keys"""

    def lse(self, largest: Tensor, total: Tensor) -> Tensor:
        lse = super().lse(largest, total)
        return torch.where(total == 0, 0.0, lse)


class KeysForValues(Sound):
    """keys averaged instead of values"""

    def make_attend(self, case, masks):  # type: ignore[no-untyped-def]
        return lambda q, k, v: self.attend(case.config, masks, q, k, k)


DEFECTS = (
    DropsLastKey,
    DropsLastKeyOfRaggedTile,
    DropsRaggedTile,
    LeavesTailOfQueries,
    OnlyMultiplesOfEight,
    ScaleOffByOnePercent,
    ScaleOffByOneThousandth,
    NoScale,
    ScaleOfWholeWidth,
    IgnoresScale,
    GroupsInterleaved,
    RoundsScores,
    LowAccumulator,
    RoundsWeightsTwice,
    CrudeExponential,
    TruncatesOutput,
    ForgetsToRescale,
    NoMaximum,
    MaximumStartsTooHigh,
    SumStartsAtEpsilon,
    LogSumExpToBaseTwo,
    LogSumExpWithoutMaximum,
    LogSumExpOfNoKeys,
    KeysForValues,
)
