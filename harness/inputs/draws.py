"""Seeded numbers, and how each distribution shapes them.

Every tensor has a generator of its own, seeded by the case's seed, the index of the set and the
tensor's name, so that no tensor depends on which others were drawn.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

from harness.attention import Case, DType
from harness.tensors import torch_dtype

Draw = Callable[..., Tensor]
Shaped = tuple[Tensor, Tensor, Tensor]

_OUTLIER_CHANNEL = 3
_LOGIT_FACTORS = {"logits_x8": 8.0, "logits_x32": 32.0}


def drawer(case: Case, index: int) -> Draw:
    """``draw(name, *shape)`` gives standard normal numbers that depend on nothing else."""
    wide = torch.float64 if case.config.dtype is DType.FLOAT64 else torch.float32

    def draw(name: str, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator_for(case.seed, index, name), dtype=wide)

    return draw


def generator_for(seed: int, index: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{index}/{name}".encode()).digest()
    # Torch seeds are signed 64-bit numbers.
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def shape_attention(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    """Turn standard normal q ``[B, H, L, D]``, k and v ``[B, G, S, D]`` into the distribution."""
    return _SHAPED[case.inputs](case, index, q, k, v)


def shape_layer(case: Case, index: int, tensors: dict[str, Tensor]) -> None:
    """Shape x, x_kv and the weights in place, so that q, k and v come out as the distribution has
    them.
    """
    c = case.config
    w_qkv = tensors["w_qkv"]
    if case.inputs in _LOGIT_FACTORS:
        w_qkv[: c.num_heads * c.head_dim] *= _LOGIT_FACTORS[case.inputs]
    elif case.inputs == "outlier_channel":
        of_q_and_k = w_qkv[: (c.num_heads + c.num_kv_heads) * c.head_dim]
        of_q_and_k.view(-1, c.head_dim, c.hidden_size)[:, _OUTLIER_CHANNEL % c.head_dim] *= 20.0
    elif case.inputs == "spikes":
        for name in {"x", "x_kv"} & set(tensors):
            tensors[name] = _with_spikes(case, index, name, tensors[name])


def _gaussian(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    return q, k, v


def _logits(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    return q * _LOGIT_FACTORS[case.inputs], k, v


def _outlier_channel(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    for tensor in (q, k):
        tensor[..., _OUTLIER_CHANNEL % case.config.head_dim] *= 20.0
    return q, k, v


def _spikes(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    q, k, v = (_with_spikes(case, index, n, t) for n, t in (("q", q), ("k", k), ("v", v)))
    return q, k, v


def _with_spikes(case: Case, index: int, name: str, tensor: Tensor) -> Tensor:
    generator = generator_for(case.seed, index, f"{name}.spikes")
    chosen = torch.rand(tensor.shape, generator=generator) < 0.001
    spikes = torch.randn(int(chosen.sum()), generator=generator, dtype=tensor.dtype)
    tensor[chosen] += 10.0 * spikes
    return tensor


def _shifted_keys(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    return q, k + 8.0, v


def _attention_sink(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    # Scores of key 0 lie about 10 above the rest; its value is small, as sinks in real models are.
    q[..., 0] = 4.0
    k[..., :1, 0] = 2.5 * math.sqrt(case.config.head_dim)
    v[..., :1, :] *= 0.01
    return q, k, v


def _zero_queries(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    values = torch.rand(v.shape, generator=generator_for(case.seed, index, "v"), dtype=v.dtype)
    return torch.zeros_like(q), k, values


def _constant_values(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    return q, k, 1.0 + v / 128.0


def _subnormal(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    smallest_normal = torch.finfo(torch_dtype(case.config.dtype)).smallest_normal
    return q, k, v * (smallest_normal / 4.0)


def _strided(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    return q, k, v


def _nonfinite(case: Case, index: int, q: Tensor, k: Tensor, v: Tensor) -> Shaped:
    # Of queries only: below a mask, a NaN key or value has no single right answer.
    q[:1, :1, -1:] = math.nan
    q[:1, -1:, -2:-1] = math.inf
    return q, k, v


_SHAPED: dict[str, Callable[[Case, int, Tensor, Tensor, Tensor], Shaped]] = {
    "gaussian": _gaussian,
    "logits_x8": _logits,
    "logits_x32": _logits,
    "outlier_channel": _outlier_channel,
    "spikes": _spikes,
    "shifted_keys": _shifted_keys,
    "attention_sink": _attention_sink,
    "zero_queries": _zero_queries,
    "constant_values": _constant_values,
    "subnormal": _subnormal,
    "strided": _strided,
    "nonfinite": _nonfinite,
}
