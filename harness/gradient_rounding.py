"""How far rounding alone may move each gradient element; the formulas stand in ``rounding``.

Shapes: R rows of a block, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference import Backward
from harness.rounding import SIGMAS, Forward, OperandErrors, Units
from harness.score_blocks import Block


@dataclass(frozen=True)
class GradientMagnitudes:
    """A block's share in the bounds ``coefficient * scaled + fixed``; those of dk and dv add up.

    Args:
        dq: ``[R, D]``, scaled and fixed.
        dk: ``[S, D]``, scaled and fixed.
        dv: ``[S, D]``, scaled and fixed.
    """

    dq: tuple[Tensor, Tensor]
    dk: tuple[Tensor, Tensor]
    dv: tuple[Tensor, Tensor]


def gradient_magnitudes(
    block: Block,
    inner: Backward,
    forward: Forward,
    d_output: Tensor,
    block_output: Tensor,
    scale: float,
    u: Units,
    errors: OperandErrors | None,
) -> GradientMagnitudes:
    """Magnitudes of one block from its gradients; d_output and block_output are ``[R, D]``."""
    wide = forward.scaled.dtype
    probabilities = block.probabilities.to(wide)
    d_output, block_output = d_output.to(wide), block_output.to(wide)
    terms = _score_gradient_terms(inner, probabilities, d_output, block_output, forward.scaled)
    scaled = probabilities * terms
    fixed = probabilities * _product_rounding(block, d_output, block_output, u, errors)
    fixed += u.tau * (1 + terms)
    if block.keep is not None:
        fixed.masked_fill_(~block.keep, 0.0)
    q, k = block.q.to(wide).abs(), block.k.to(wide).abs()
    size = abs(scale)
    dq = size * (scaled @ k), size * (fixed @ k) + u.tau
    dk = size * (scaled.T @ q), size * (fixed.T @ q) + u.tau
    dv = probabilities.T @ d_output.abs(), u.tau * (1 + d_output.abs().sum(dim=0)).expand_as(k)
    if errors is None:
        return GradientMagnitudes(dq, dk, dv)
    return _with_operands(GradientMagnitudes(dq, dk, dv), block, inner, size, errors)


def _score_gradient_terms(
    inner: Backward, probabilities: Tensor, d_output: Tensor, block_output: Tensor, scaled: Tensor
) -> Tensor:
    """M ``[R, S]``: what dP - delta is made of, in absolute terms."""
    d_probabilities = inner.d_probabilities.to(scaled.dtype).abs()
    delta = (probabilities * d_probabilities).sum(dim=-1)
    delta += (d_output * block_output).abs().sum(dim=-1)
    delta += (d_output * scaled).square().sum(dim=-1).sqrt()
    return d_probabilities + delta[:, None]


def _product_rounding(
    block: Block, d_output: Tensor, block_output: Tensor, u: Units, errors: OperandErrors | None
) -> Tensor:
    """X ``[R, S]``: rounding inside the products dP, and what the operands' errors do to dS."""
    v = block.v.to(d_output.dtype)
    lengths = torch.outer(d_output.norm(dim=-1), v.norm(dim=-1))
    inside = 2 * math.sqrt(v.shape[-1]) * u.accumulate * lengths
    if errors is None or errors.d_output is None:
        return inside
    d_error = errors.d_output[block.batch, block.head, block.rows].to(v.dtype)
    v_error = errors.v[block.batch, block.kv_head].to(v.dtype)
    left, right = torch.cat((d_error, d_output), dim=-1), torch.cat((v, v_error), dim=-1)
    of_products = (left.square() @ right.square().T).sqrt()
    of_delta = (d_error * block_output).square().sum(dim=-1, keepdim=True).sqrt()
    return inside + SIGMAS * (of_products + of_delta)


def _with_operands(
    magnitudes: GradientMagnitudes,
    block: Block,
    inner: Backward,
    size: float,
    errors: OperandErrors,
) -> GradientMagnitudes:
    """Adds the errors of q, k and d_output where they stand as factors."""
    (dq, dq_fixed), (dk, dk_fixed), (dv, dv_fixed) = magnitudes.dq, magnitudes.dk, magnitudes.dv
    wide = dq.dtype
    d_scores = inner.d_scores.abs().to(wide)
    at, kv = (block.batch, block.head, block.rows), (block.batch, block.kv_head)
    dq_fixed = dq_fixed + size * (d_scores @ errors.k[kv].to(wide))
    dk_fixed = dk_fixed + size * (d_scores.T @ errors.q[at].to(wide))
    if errors.d_output is not None:
        dv_fixed = dv_fixed + block.probabilities.T.to(wide) @ errors.d_output[at].to(wide)
    return GradientMagnitudes((dq, dq_fixed), (dk, dk_fixed), (dv, dv_fixed))
