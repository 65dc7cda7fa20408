"""Plain softmax attention in the inputs' own dtype: what "as exact as naive" is measured against.

Scale before the product, so that float16 scores do not overflow; scores, probabilities and output
rounded to the dtype. One head at a time. It takes part in no ranking.

Shapes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len, n wanted
rows, E hidden_size.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.attention import AttentionConfig
from harness.score_blocks import Problem, bias_rows, keep_rows
from harness.tensors import AttentionInputs, Inputs

# Scores that autograd may keep for one call; beyond it gradients have no yardstick.
_MAX_SAVED_SCORES = 1 << 25


def yardstick_outputs(
    config: AttentionConfig, inputs: Inputs, problem: Problem, rows: Tensor | None
) -> Mapping[str, Tensor]:
    """Outputs by name, ``o`` or ``y`` of the wanted rows, and gradients where they are due and
    affordable.

    Args:
        problem: The same problem, for its masks.
    """
    leaves = {name: tensor.detach() for name, tensor in inputs.leaves.items()}
    grad_output = inputs.grad_output
    if grad_output is None or rows is not None or _saved_scores(config) > _MAX_SAVED_SCORES:
        with torch.no_grad():
            return {_name(inputs): _forward(config, leaves, inputs, problem, rows)}
    with torch.enable_grad():
        leaves = {name: tensor.requires_grad_() for name, tensor in leaves.items()}
        result = _forward(config, leaves, inputs, problem, rows)
        gradients = torch.autograd.grad(result, list(leaves.values()), grad_output)
    named = {f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    return {_name(inputs): result.detach(), **named}


def _name(inputs: Inputs) -> str:
    return "o" if isinstance(inputs, AttentionInputs) else "y"


def _saved_scores(c: AttentionConfig) -> int:
    return c.batch_size * c.num_heads * c.seq_len * c.kv_seq_len


def _forward(
    c: AttentionConfig,
    leaves: Mapping[str, Tensor],
    inputs: Inputs,
    problem: Problem,
    rows: Tensor | None,
) -> Tensor:
    if isinstance(inputs, AttentionInputs):
        return _attention(problem, leaves["q"], leaves["k"], leaves["v"], rows)
    x, x_kv = leaves["x"], leaves.get("x_kv", leaves["x"])
    widths = [c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim]
    w_q, w_k, w_v = torch.split(leaves["w_qkv"], widths)
    projected = ((x, w_q), (x_kv, w_k), (x_kv, w_v))
    q, k, v = (_heads(F.linear(a, w), c.head_dim) for a, w in projected)
    o = _attention(problem, q, k, v, rows)
    return F.linear(o.transpose(1, 2).flatten(2), leaves["w_o"])


def _heads(packed: Tensor, head_dim: int) -> Tensor:
    batch_size, length, width = packed.shape
    return packed.view(batch_size, length, width // head_dim, head_dim).transpose(1, 2)


def _attention(problem: Problem, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None) -> Tensor:
    """``[B, H, n, D]``."""
    c = problem.config
    wanted = torch.arange(c.seq_len) if rows is None else rows
    if not c.batch_size or not len(wanted):
        return q[:, :, :0] + 0 * (k.sum() + v.sum())
    heads = [
        torch.stack([_head(problem, b, h, wanted, q, k, v) for h in range(c.num_heads)])
        for b in range(c.batch_size)
    ]
    return torch.stack(heads)


def _head(
    problem: Problem, b: int, h: int, rows: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    c = problem.config
    bias = bias_rows(problem, b, h, rows)
    keep = keep_rows(problem, b, h, rows, bias)
    queries = q[b, h].index_select(0, rows.to(q.device))
    scores = (queries * c.scale) @ k[b, h // c.group_size].T
    if bias is not None:
        scores = scores + bias.to(scores.device)
    if keep is not None:
        absent = ~keep.to(scores.device)
        # A row without keys is filled with 0: minus infinity alone would give NaN, and NaN
        # gradients.
        empty = absent.all(dim=-1, keepdim=True)
        scores = scores.masked_fill(absent & ~empty, -torch.inf).masked_fill(empty, 0.0)
    probabilities = scores.softmax(dim=-1)
    if keep is not None:
        probabilities = probabilities.masked_fill(absent, 0.0)
    return probabilities @ v[b, h // c.group_size]
