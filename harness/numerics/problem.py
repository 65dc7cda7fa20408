"""An attention problem on the CPU, as the oracle is given it, and the part that some heads are.

Suffixes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len, n slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.attention import AttentionConfig
from harness.tensors import AttentionInputs, MaskTensors


@dataclass(frozen=True)
class Problem:
    """Tensors of an attention problem on the CPU, in any dtype; each block widens its own part.

    Args:
        q_BHLD: Queries.
        k_BGSD: Keys.
        v_BGSD: Values.
    """

    config: AttentionConfig
    q_BHLD: Tensor  # noqa: N815
    k_BGSD: Tensor  # noqa: N815
    v_BGSD: Tensor  # noqa: N815
    masks: MaskTensors


def on_cpu(tensor: Tensor) -> Tensor:
    """The numbers of a tensor on the CPU, without its history."""
    return tensor.detach().cpu()


def masks_on_cpu(masks: MaskTensors) -> MaskTensors:
    """The same mask on the CPU."""
    key_padding, keep, bias = (
        None if t is None else on_cpu(t) for t in (masks.key_padding, masks.keep, masks.bias)
    )
    return MaskTensors(key_padding, keep, bias, masks.declared_bias)


def attention_problem(config: AttentionConfig, inputs: AttentionInputs) -> Problem:
    """The problem that the inputs of scope attention pose."""
    q, k, v = on_cpu(inputs.q), on_cpu(inputs.k), on_cpu(inputs.v)
    return Problem(config, q, k, v, masks_on_cpu(inputs.masks))


def sliced(problem: Problem, slices: Sequence[tuple[int, int]]) -> Problem:
    """The problem of some key heads alone, with the query heads that share them: each pair of batch
    entry and key head becomes a batch entry of its own.
    """
    c = problem.config
    size = c.group_size
    masks = problem.masks
    return Problem(
        replace(
            c,
            batch_size=len(slices),
            num_heads=size,
            num_kv_heads=1,
            hidden_size=size * c.head_dim,
        ),
        query_heads(problem.q_BHLD, slices, size),
        torch.stack([problem.k_BGSD[b, g : g + 1] for b, g in slices]),
        torch.stack([problem.v_BGSD[b, g : g + 1] for b, g in slices]),
        MaskTensors(
            None if masks.key_padding is None else masks.key_padding[[b for b, _ in slices]],
            None if masks.keep is None else _sliced_mask(masks.keep, slices, size),
            None if masks.bias is None else _sliced_mask(masks.bias, slices, size),
            masks.declared_bias,
        ),
    )


def query_heads(tensor: Tensor, slices: Sequence[tuple[int, int]], size: int) -> Tensor:
    """``[n, size, L, D]`` of ``[B, H, L, D]``: the query heads of each key head."""
    return torch.stack([tensor[b, g * size : (g + 1) * size] for b, g in slices])


def _sliced_mask(mask: Tensor, slices: Sequence[tuple[int, int]], size: int) -> Tensor:
    if mask.dim() == 2:
        return mask
    per_batch, per_head = mask.shape[0] > 1, mask.shape[1] > 1
    return torch.stack(
        [
            mask[
                b if per_batch else 0, slice(g * size, (g + 1) * size) if per_head else slice(0, 1)
            ]
            for b, g in slices
        ]
    )
