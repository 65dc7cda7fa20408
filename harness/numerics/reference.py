"""The float64 oracle: attention, its gradients and its layer, from the definition alone.

It shares no code with any implementation, runs on the CPU in blocks of rows, and needs memory for
one block of scores at a time. Masked pairs are absent, not multiplied by zero: a NaN below a mask
does not reach the output. A query without any key gives output 0 and finite gradients.

Suffixes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len, R rows of
a block, n wanted rows, E hidden_size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.attention import AttentionConfig
from harness.numerics.problem import Problem
from harness.numerics.score_blocks import Block, blocks
from harness.tensors import LayerWeights


def weighted_sum(weights: Tensor, values: Tensor, keep: Tensor | None) -> Tensor:
    """``weights @ values`` over the pairs that attend: absent ones add nothing, not even 0 * NaN.

    Args:
        weights: ``[m, n]``, 0 where absent.
        values: ``[n, D]``.
        keep: ``[m, n]``, None where every pair attends.
    """
    finite = values.isfinite().all(dim=-1)
    if keep is None or bool(finite.all()):
        return weights @ values
    result = weights @ values.masked_fill(~finite[:, None], 0.0)
    for j in (~finite).nonzero().flatten().tolist():
        result += (weights[:, j, None] * values[j]).masked_fill(~keep[:, j, None], 0.0)
    return result


def output(block: Block) -> Tensor:
    """``[R, D]``: P V over the pairs that attend."""
    return weighted_sum(block.probabilities, block.v, block.keep)


@dataclass(frozen=True)
class Backward:
    """Gradients inside a block, ``[R, S]``: of the probabilities, and of the scores after bias."""

    d_probabilities: Tensor
    d_scores: Tensor


def backward(block: Block, d_output: Tensor, block_output: Tensor) -> Backward:
    """Softmax backward from d_output and output, both ``[R, D]``."""
    d_probabilities = d_output @ block.v.T
    delta = (d_output * block_output).sum(dim=-1, keepdim=True)
    d_scores = block.probabilities * (d_probabilities - delta)
    if block.keep is not None:
        d_scores.masked_fill_(~block.keep, 0.0)
    return Backward(d_probabilities, d_scores)


@dataclass(frozen=True)
class Exact:
    """Float64 results; gradients are None unless asked for.

    Args:
        o: ``[B, H, n, D]`` for n wanted rows.
        lse: ``[B, H, n]``.
        dq: ``[B, H, n, D]``.
        dk: ``[B, G, S, D]``.
        dv: ``[B, G, S, D]``.
    """

    o: Tensor
    lse: Tensor
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None

    @property
    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk and dv, where they were asked for."""
        assert self.dq is not None
        assert self.dk is not None
        assert self.dv is not None
        return self.dq, self.dk, self.dv


def empty_exact(problem: Problem, num_rows: int, has_gradients: bool) -> Exact:
    """Results of the right shapes, all zero, to be filled block by block."""
    c = problem.config
    queries = (c.batch_size, c.num_heads, num_rows, c.head_dim)
    keys = (c.batch_size, c.num_kv_heads, c.kv_seq_len, c.head_dim)
    made = [torch.zeros(s, dtype=torch.float64) for s in (queries, queries[:3])]
    if has_gradients:
        made += [torch.zeros(s, dtype=torch.float64) for s in (queries, keys, keys)]
    return Exact(*made)


def fill_exact(
    exact: Exact, block: Block, scale: float, d_output: Tensor | None
) -> Backward | None:
    """Enter one block's output, and its gradients if ``d_output`` ``[R, D]`` is given."""
    at, kv = (block.batch, block.head, block.span), (block.batch, block.kv_head)
    block_output = output(block)
    exact.o[at], exact.lse[at] = block_output, block.lse
    if d_output is None or exact.dq is None or exact.dk is None or exact.dv is None:
        return None
    inner = backward(block, d_output, block_output)
    transposed = None if block.keep is None else block.keep.T
    exact.dq[at] = weighted_sum(inner.d_scores, block.k, block.keep) * scale
    exact.dk[kv] += weighted_sum(inner.d_scores.T, block.q, transposed) * scale
    exact.dv[kv] += block.probabilities.T @ d_output
    return inner


def exact_attention(
    problem: Problem, rows: Tensor | None = None, d_output: Tensor | None = None
) -> Exact:
    """Attention in float64, with gradients if ``d_output`` ``[B, H, L, D]`` is given.

    Args:
        rows: ``[n]`` positions of the wanted queries; None for all. With gradients every row is
            needed, for dk and dv sum over them.
    """
    num_rows = problem.config.seq_len if rows is None else len(rows)
    exact = empty_exact(problem, num_rows, d_output is not None)
    for block in blocks(problem, rows):
        of_block = None
        if d_output is not None:
            of_block = d_output[block.batch, block.head, block.rows].double()
        fill_exact(exact, block, problem.config.scale, of_block)
    return exact


@dataclass(frozen=True)
class HeadWeights:
    """Float64 weights of a layer by head: head i projects by the transposed block i.

    Args:
        w_q_HDE: W_Q of the query heads.
        w_k_GDE: W_K of the key heads.
        w_v_GDE: W_V of the value heads.
        w_o_EHD: W_O, the part that each head goes through.
    """

    w_q_HDE: Tensor  # noqa: N815
    w_k_GDE: Tensor  # noqa: N815
    w_v_GDE: Tensor  # noqa: N815
    w_o_EHD: Tensor  # noqa: N815


def head_weights(config: AttentionConfig, weights: LayerWeights) -> HeadWeights:
    """The packed weights, taken apart."""
    c = config
    w_qkv, w_o = (t.detach().cpu().double() for t in (weights.w_qkv, weights.w_o))
    sizes = [c.num_heads, c.num_kv_heads, c.num_kv_heads]
    w_q, w_k, w_v = torch.split(w_qkv.reshape(-1, c.head_dim, c.hidden_size), sizes)
    return HeadWeights(w_q, w_k, w_v, w_o.reshape(c.hidden_size, c.num_heads, c.head_dim))


def to_heads(x_BLE: Tensor, w_HDE: Tensor) -> Tensor:  # noqa: N803
    """``[B, H, L, D]``: each head's own projection of x."""
    return torch.einsum("ble,hde->bhld", x_BLE, w_HDE)


def from_heads(o_BHLD: Tensor, w_EHD: Tensor) -> Tensor:  # noqa: N803
    """``[B, L, E]``: Concat(head_1, ..., head_H) W_O, as the sum of what each head contributes."""
    return torch.einsum("bhld,ehd->ble", o_BHLD, w_EHD)
