"""Attention in float64, written pair by pair from the definitions and nothing of ours.

B batch_size, H num_heads, G num_kv_heads, L seq_len, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harness.interface import AttentionConfig, AttentionInputs, Case, Mask, MaskTensors, torch_dtype

SIZES: dict[str, Any] = {"batch_size": 3, "num_heads": 4, "head_dim": 8, "hidden_size": 32}


def case_of(mask: str = "none", mode: str = "forward", **axes: Any) -> Case:
    """A case of small sizes that all differ."""
    config = AttentionConfig(**(SIZES | {"seq_len": 7} | axes), mask=Mask.parse(mask))
    return Case(config=config, mode=mode)  # type: ignore[arg-type]


def mask_tensors(c: AttentionConfig, seed: int = 0) -> MaskTensors:
    """Random tensors for the parts of the mask that need them."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch_dtype(c.dtype)
    lengths = torch.tensor(c.key_lengths(), dtype=torch.long)
    shape = (c.batch_size, 1, c.seq_len, c.kv_seq_len)
    per_head = (1, c.num_heads, c.seq_len, c.kv_seq_len)
    return MaskTensors(
        torch.arange(c.kv_seq_len)[None] < lengths[:, None] if c.mask.key_padding else None,
        torch.rand(shape, generator=generator) < 0.7 if c.mask.keep else None,
        torch.randn(per_head, generator=generator, dtype=dtype) if c.mask.bias else None,
    )


def random_inputs(case: Case, seed: int = 0) -> AttentionInputs:
    """Standard normal q, k, v, that ask for gradients where the mode has them."""
    c = case.config
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "q": (c.batch_size, c.num_heads, c.seq_len, c.head_dim),
        "k": (c.batch_size, c.num_kv_heads, c.kv_seq_len, c.head_dim),
        "v": (c.batch_size, c.num_kv_heads, c.kv_seq_len, c.head_dim),
    }
    dtype, wanted = torch_dtype(c.dtype), case.mode.has_gradients
    tensors = {
        name: torch.randn(shape, generator=generator).to(dtype).requires_grad_(wanted)
        for name, shape in shapes.items()
    }
    return AttentionInputs(**tensors, masks=mask_tensors(c, seed))


def attends(c: AttentionConfig, query: int, key: int) -> bool:
    """Whether position alone lets this pair attend."""
    distance = key - (query + (c.kv_seq_len - c.seq_len) * (c.mask.causal == "bottom_right"))
    seen = distance <= 0 if c.mask.causal != "none" else True
    return seen and (c.mask.window is None or abs(distance) < c.mask.window)


def exact_scores(c: AttentionConfig, inputs: AttentionInputs) -> Tensor:
    """Scaled and masked scores ``[B, H, L, S]``; -inf where a pair does not attend."""
    q, k, masks = inputs.q.double(), inputs.k.double(), inputs.masks
    group_size = c.num_heads // c.num_kv_heads
    k = torch.stack([k[:, head // group_size] for head in range(c.num_heads)], dim=1)
    scores = torch.einsum("bhld,bhsd->bhls", q, k) * c.scale
    if masks.bias is not None:
        scores = scores + masks.bias.double()
    excluded = torch.tensor(
        [[not attends(c, i, j) for j in range(c.kv_seq_len)] for i in range(c.seq_len)]
    ).view(c.seq_len, c.kv_seq_len)
    excluded = excluded.expand(scores.shape).clone()
    if masks.key_padding is not None:
        excluded |= ~masks.key_padding[:, None, None, :]
    if masks.keep is not None:
        excluded |= ~masks.keep
    return scores.masked_fill(excluded, float("-inf"))


def exact_attention(c: AttentionConfig, inputs: AttentionInputs) -> Tensor:
    """``[B, H, L, D]``; zeros where a query attends to nothing."""
    scores = exact_scores(c, inputs)
    group_size = c.num_heads // c.num_kv_heads
    v = inputs.v.double()
    v = torch.stack([v[:, head // group_size] for head in range(c.num_heads)], dim=1)
    alone = torch.isneginf(scores).all(dim=-1, keepdim=True)
    weights = torch.exp(scores.masked_fill(alone, 0.0).log_softmax(dim=-1)).masked_fill(alone, 0.0)
    return torch.einsum("bhls,bhsd->bhld", weights, v)


@dataclass(frozen=True)
class Gradients:
    """An output and the gradients of its weighted sum."""

    output: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor

    def difference(self, other: Gradients) -> dict[str, float]:
        """Largest absolute difference by name; NaN where there is one."""
        found = {}
        for name, mine in vars(self).items():
            theirs = getattr(other, name)
            assert mine.shape == theirs.shape, name
            gap = (mine.double() - theirs.double()).abs()
            found[name] = float(gap.max()) if gap.numel() else 0.0
        return found


def with_gradients(output: Tensor, inputs: AttentionInputs, seed: int = 1) -> Gradients:
    """The gradients of ``output``, weighted by a seeded normal tensor."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(output.shape, generator=generator).to(output.dtype)
    leaves = (inputs.q, inputs.k, inputs.v)
    return Gradients(output.detach(), *torch.autograd.grad(output, leaves, weights))


def in_float64(inputs: AttentionInputs) -> AttentionInputs:
    """The same values in float64, as fresh leaves."""
    q, k, v = (
        x.detach().double().requires_grad_(x.requires_grad) for x in (inputs.q, inputs.k, inputs.v)
    )
    return replace(inputs, q=q, k=k, v=v)
