"""The tensors of a case's mask, drawn from its seed or following from its sizes.

Shapes: B batch_size, H num_heads, L seq_len, S kv_seq_len.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness.attention import AttentionConfig, Bias, Case, Keep
from harness.cost import KEEP_PROBABILITY
from harness.documents import document_lengths
from harness.errors import InvalidValueError
from harness.inputs.draws import generator_for
from harness.tensors import MaskTensors, torch_dtype


def make_masks(case: Case) -> MaskTensors:
    """The mask tensors of a case, on its device; equal for all sets of inputs."""
    c = case.config
    keep = {Keep.RANDOM: _random_keep, Keep.DOCUMENT: _document_keep}
    bias = {Bias.RANDOM: _random_bias, Bias.ALIBI: _alibi_bias}
    for argument, part, made in (("keep", c.mask.keep, keep), ("bias", c.mask.bias, bias)):
        if part is not None and part not in made:
            raise InvalidValueError(
                f"mask.{argument}", "a part that can be drawn", part, list(made)
            )
    tensors = {
        "key_padding": _key_padding(c) if c.mask.key_padding else None,
        "keep": keep[c.mask.keep](case) if c.mask.keep else None,
        "bias": bias[c.mask.bias](case).to(torch_dtype(c.dtype)) if c.mask.bias else None,
    }
    placed = {name: None if t is None else t.to(case.device) for name, t in tensors.items()}
    return MaskTensors(**placed, declared_bias=c.mask.bias is not None)


def _key_padding(c: AttentionConfig) -> Tensor:
    return torch.arange(c.kv_seq_len) < torch.tensor(c.key_lengths()).reshape(-1, 1)


def _random_keep(case: Case) -> Tensor:
    """``[B, 1, L, S]``: all heads of a batch entry share it."""
    c = case.config
    shape = (c.batch_size, 1, c.seq_len, c.kv_seq_len)
    return torch.rand(shape, generator=generator_for(case.seed, 0, "keep")) < KEEP_PROBABILITY


def _document_keep(case: Case) -> Tensor:
    """``[L, S]``: a query belongs to the document of the key position that it stands at."""
    c = case.config
    lengths = torch.tensor(document_lengths(c.kv_seq_len), dtype=torch.long)
    of_key = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    position = torch.arange(c.seq_len) + c.causal_offset
    if not len(of_key):
        return torch.zeros(c.seq_len, 0, dtype=torch.bool)
    return of_key[position.clamp(0, c.kv_seq_len - 1)][:, None] == of_key


def _random_bias(case: Case) -> Tensor:
    """``[1, H, L, S]``, standard normal, as a learned relative-position bias is per head."""
    c = case.config
    shape = (1, c.num_heads, c.seq_len, c.kv_seq_len)
    return torch.randn(shape, generator=generator_for(case.seed, 0, "bias"))


def _alibi_bias(case: Case) -> Tensor:
    """``[1, H, L, S]``: -slope(head) * distance between query and key position."""
    c = case.config
    position = torch.arange(c.seq_len)[:, None] + c.causal_offset
    distance = (position - torch.arange(c.kv_seq_len)).abs().float()
    return -(torch.tensor(alibi_slopes(c.num_heads))[:, None, None] * distance)[None]


def alibi_slopes(num_heads: int) -> list[float]:
    """Slopes of Press et al. 2022: 2^(-8 i / n) for a power of two, else filled up from the next
    power's odd ones.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(2 * power)]
    return slopes + between[::2][: num_heads - power]
