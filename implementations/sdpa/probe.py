"""Has SDPA a kernel of this backend for this kind of case? Found out by one real call."""

from __future__ import annotations

import warnings
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from harness.interface import Case, DType, is_plain_causal, missing_device, torch_dtype
from implementations.sdpa.backends import Only, short_name


class Kind(NamedTuple):
    """All of a case that decides whether a backend has a kernel for it."""

    backend: SDPBackend
    device: str
    dtype: DType
    head_dim: int
    equal_lengths: bool
    mask: str
    grouped_heads: bool
    dropout_p: float
    is_training: bool

    @classmethod
    def of(cls, backend: SDPBackend, case: Case, native_grouped_heads: bool) -> Kind:
        c = case.config
        return cls(
            backend=backend,
            device=case.device,
            dtype=c.dtype,
            head_dim=c.head_dim,
            equal_lengths=c.seq_len == c.kv_seq_len,
            mask="causal" if is_plain_causal(c) else "none" if c.mask.is_none else "bias",
            grouped_heads=native_grouped_heads and c.group_size > 1,
            dropout_p=c.dropout_p,
            is_training=case.mode.is_training,
        )

    def __str__(self) -> str:
        return (
            f"device={self.device}, dtype={self.dtype}, head_dim={self.head_dim}"
            + (", lengths that differ" * (not self.equal_lengths))
            + f", mask as {self.mask}" * (self.mask != "none")
            + ", grouped heads" * self.grouped_heads
            + f", dropout_p={self.dropout_p:g}" * (self.dropout_p > 0)
            + ", gradients" * self.is_training
        )


@cache
def missing_kernel(kind: Kind) -> tuple[str, ...]:
    """The reason in torch's words, or nothing; the enable flags read True where no kernel exists.

    Leaves the random generators as they were.
    """
    if missing := missing_device(kind.device):
        return missing
    devices = [torch.cuda.current_device()] if kind.device == "cuda" else []
    with warnings.catch_warnings(record=True) as said, torch.random.fork_rng(devices):
        warnings.simplefilter("always")
        try:
            _call(kind)
        except (RuntimeError, NotImplementedError) as error:
            words = _first_lines([str(w.message) for w in said]) or str(error).splitlines()[0]
            backend = short_name(kind.backend)
            return (f"sdpa backend {backend} has no kernel for {kind} (torch: {words})",)
    return ()


def _call(kind: Kind) -> None:
    seq_len, num_heads = 16, 2
    kv_shape = (
        1,
        1 if kind.grouped_heads else num_heads,
        seq_len if kind.equal_lengths else 2 * seq_len,
        kind.head_dim,
    )
    q, k, v = (
        torch.zeros(
            shape,
            dtype=torch_dtype(kind.dtype),
            device=kind.device,
            requires_grad=kind.is_training,
        )
        for shape in ((1, num_heads, seq_len, kind.head_dim), kv_shape, kv_shape)
    )
    bias = q.detach().new_zeros(seq_len, kv_shape[2]) if kind.mask == "bias" else None
    is_causal = kind.mask == "causal"
    with Only(kind.backend):
        output = F.scaled_dot_product_attention(
            q, k, v, bias, kind.dropout_p, is_causal, enable_gqa=kind.grouped_heads
        )
    if kind.is_training:
        torch.autograd.grad(output.sum(), (q, k, v))


def _first_lines(warned: list[str]) -> str:
    """What torch warned, without its headings and source lines."""
    lines = (text.split(" (Triggered internally")[0].strip() for text in warned)
    return " ".join(line for line in lines if line and not line.endswith("because:"))
