"""How far rounding alone may move each gradient element; the formulas stand in ``rounding``.

Shapes: R rows of a block, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.numerics.reference import Backward
from harness.numerics.rounding import SIGMAS, OperandErrors, Parts, Units, finite_size
from harness.numerics.score_blocks import Block


@dataclass(frozen=True)
class GradientParts:
    """A block's share in the bounds of its gradients; those of dk and dv add up over blocks.

    Args:
        dq: ``[R, D]`` each.
        dk: ``[S, D]`` each.
        dv: ``[S, D]`` each.
    """

    dq: Parts
    dk: Parts
    dv: Parts


def gradient_parts(
    block: Block,
    inner: Backward,
    pv: Tensor,
    d_output: Tensor,
    block_output: Tensor,
    scale: float,
    u: Units,
    errors: OperandErrors | None,
) -> GradientParts:
    """Magnitudes of one block's gradients; pv (P|V|), d_output, block_output are ``[R, D]``."""
    wide = pv.dtype
    probabilities = block.probabilities.to(wide)
    d_output, block_output = d_output.to(wide), block_output.to(wide)
    terms = _score_gradient_terms(block, inner, probabilities, d_output, block_output, pv)
    scaled = probabilities * terms
    fixed = probabilities * _product_rounding(block, d_output, block_output, u, errors)
    underflow = 1 + terms
    if block.keep is not None:  # a NaN in the row must not enter absent pairs
        for part in (scaled, fixed, underflow):
            part.masked_fill_(~block.keep, 0.0)
    size = abs(scale)
    q, k, d_size = finite_size(block.q, wide), finite_size(block.k, wide), d_output.abs()
    of_scores = (size * scaled, size * fixed, max(1.0, size) * underflow)
    dq = Parts(*(part @ k for part in of_scores))
    dk = Parts(*(part.T @ q for part in of_scores))
    dv_scaled = probabilities.T @ d_size
    dv = Parts(dv_scaled, torch.zeros_like(dv_scaled), d_size.sum(dim=0).expand_as(dv_scaled))
    if errors is not None:
        _add_operand_errors(dq, dk, dv, block, inner, size, errors)
    return GradientParts(dq, dk, dv)


def _score_gradient_terms(
    block: Block,
    inner: Backward,
    probabilities: Tensor,
    d_output: Tensor,
    block_output: Tensor,
    pv: Tensor,
) -> Tensor:
    """M ``[R, S]``: what dP - delta is made of, in absolute terms."""
    d_probabilities = inner.d_probabilities.to(pv.dtype).abs()
    if block.keep is not None:
        d_probabilities.masked_fill_(~block.keep, 0.0)
    delta = (probabilities * d_probabilities).sum(dim=-1)
    delta += (d_output * block_output).abs().sum(dim=-1)
    delta += (d_output * pv).square().sum(dim=-1).sqrt()
    return d_probabilities + delta[:, None]


def _product_rounding(
    block: Block, d_output: Tensor, block_output: Tensor, u: Units, errors: OperandErrors | None
) -> Tensor:
    """X ``[R, S]``: rounding inside the products dP, and what the operands' errors do to dS."""
    v = finite_size(block.v, d_output.dtype)
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


def _add_operand_errors(
    dq: Parts,
    dk: Parts,
    dv: Parts,
    block: Block,
    inner: Backward,
    size: float,
    errors: OperandErrors,
) -> None:
    """Adds the errors of q, k and d_output where they stand as factors, in place."""
    wide = dq.fixed.dtype
    d_scores = inner.d_scores.abs().to(wide)
    at, kv = (block.batch, block.head, block.rows), (block.batch, block.kv_head)
    dq.fixed.add_(d_scores @ errors.k[kv].to(wide), alpha=size)
    dk.fixed.add_(d_scores.T @ errors.q[at].to(wide), alpha=size)
    if errors.d_output is not None:
        dv.fixed.add_(block.probabilities.T.to(wide) @ errors.d_output[at].to(wide))
