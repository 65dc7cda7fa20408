"""The a-priori bound: how far rounding alone may move each element, whoever computes it.

For row i of one head, with u the unit roundoff of the inputs' dtype and u32 that of the
accumulation (float32, or float64 for float64)::

    A_i = max_j scale * sum_c |q_ic| |k_jc|      s_i = max_j |s_ij|      over the n_i attended keys
    fused:         eta_i = 2 (sqrt(D) u32 A_i + 2 u32 s_i) + (sqrt(n_i) + 4) u32 (+ 2 u if low)
    materialised:  eta_i = 2 (sqrt(D) u32 A_i + r u s_i) + (sqrt(n_i) + 4) u32 + 3 u
    tf32, bf16x3:  eta_i = fused, + 4 u_p A_i + 2 u_p, u_p = 2^-11 or 2^-16, for float32 inputs
    pass:          |e_ij| <= eta_i (P|V|)_ij + tau (1 + sum_j |v_j|) + flush (1 + n_i)

The square roots are the probabilistic form of sums of D or n_i roundings. flush is the smallest
normal number of float32, bfloat16 and float64, 1e-38 or less: hardware may take every product below
it for zero, as bfloat16 tile units always do. tau is flush, too, and half the smallest positive
number of float16: probabilities and results may underflow, and kernels take an exponential below
the normal numbers for zero (PTX's ex2.approx.ftz does). A bias adds to s_i what it adds to the
scores before they cancel: s_i = max_j (|scale q k_j| + |bias_ij|). r counts the roundings of a
materialised score: 2, of the scaled query and of the product, and with a bias 3. For float64 the
whole bound is doubled, since the oracle rounds as much as what it judges.

The log-sum-exp l_i = log sum_j exp s_ij, given in float32 (float64 for float64)::

    |e_i| <= S_i + w + (sqrt(n_i) + 4) u32 + (2 s_i + 3 log(1 + n_i)) u32 + tau n_i
    S_i    = half the score term of eta_i, + sqrt(D) u32 A_i

An error of delta_j in each score moves l_i by sum_j P_ij delta_j, so by no more than the largest:
half of the score term, which counts it in numerator and normaliser of P. Where one key has all the
weight P hardly moves, but l_i takes that score's error whole: the sum of D products is then allowed
2 sqrt(D) roundings instead of one, five standard deviations of errors that are uniform below u32
|s|. A relative error of the sum of weights is an absolute one of its logarithm: sqrt(n_i) + 4
roundings of exponentials and additions, and w, the unit to which weights may be rounded before they
are added, as the same contract lets them be before the product with V: u if low or materialised,
u_p for tf32 and bf16x3, else 0. tau n_i are weights that underflow, beside a sum of at least 1.
Last the logarithm itself: the maximum is at most s_i, the logarithm of the sum log n_i; either may
be kept to base 2, and both together are rounded once more.

Gradients, with P the probabilities, dP = dO V^T, M_ij = |dP_ij| + sum_j P_ij |dP_ij| + sum_c |dO O|
+ sqrt(sum_c dO^2 (P|V|)^2), and |dS| := P M, the sum of the absolute terms of dS (dS itself cancels
to nothing where values are constant)::

    c_i = 2 eta_i                                             float32, float64
    c_i = 8 u + 2 (the score term of eta_i) + (sqrt(n_i) + 4) u32     low precision
    W   = P X,  X_ij = 2 sqrt(D) u32 |dO_i| |V_j|   (rounding of the products dP)
    dq:  scale (c_i |dS| |K| + W |K|)
    dk:  scale (c |dS|^T |Q| + W^T |Q|)      dv:  c P^T |dO|
    with c = max_i c_i + (sqrt(L) + 4) u32 in a head: these sum over rows
    underflow: tau (r + T |K|), tau (r + T^T |Q|), tau (r + sum_i |dO_i|), flush (1 + n) each;
    T = max(1, scale) (1 + M), for scores' gradients may be stored before or after the scale;
    r = 3 + H / G, for a result is rounded before and after the scale, and once more per head

Scope layer feeds operands that are already rounded (``OperandErrors``): their error in the scores,
B_i = 4 scale max_j sqrt(sum_c (dq_ic^2 k_jc^2 + q_ic^2 dk_jc^2)), adds 2 B_i to eta_i and 4 B_i to
c_i, and the errors of v and dO enter O, dP, dq, dk and dv as they stand in the formulas. The factor
4 is the probabilistic one of a sum of independent errors.

Shapes: R rows of a block, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.attention import DType
from harness.interface import Contract
from harness.numerics.score_blocks import Block

SIGMAS = 4.0


@dataclass(frozen=True)
class Units:
    """The roundings of one dtype.

    Args:
        result: u of results.
        accumulate: u of the sums inside.
        tau: What a probability or a result loses when it underflows.
        flush: What hardware may take for zero; 0 where it does not.
        is_low: Whether sums are kept in a wider dtype than results.
        share: 1, or 2 where the oracle's own error is as large.
    """

    result: float
    accumulate: float
    tau: float
    flush: float
    is_low: bool
    share: float


def units(dtype: DType) -> Units:
    flush = {DType.FLOAT16: 0.0, DType.FLOAT64: 2.0**-1022}.get(dtype, 2.0**-126)
    tau = flush or 2.0**-25
    u = dtype.unit_roundoff
    is_low = dtype in (DType.FLOAT16, DType.BFLOAT16)
    return Units(u, min(u, 2.0**-24), tau, flush, is_low, 2.0 if dtype is DType.FLOAT64 else 1.0)


@dataclass(frozen=True)
class OperandErrors:
    """Bounds on the errors that an attention's operands come with, shaped like the operands.

    Args:
        d_output: Of the output's gradient; None where no gradients are taken.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    d_output: Tensor | None = None


@dataclass(frozen=True)
class RowTerms:
    """What the bound needs of each row, all of one shape: n_i, A_i, s_i, r and B_i."""

    attended: Tensor
    product: Tensor
    score: Tensor
    roundings: Tensor
    operands: Tensor


def score_term(rows: RowTerms, u: Units, contract: Contract, head_dim: int) -> Tensor:
    """Relative error that rounded scores put into each probability of a row."""
    unit = u.result if contract is Contract.MATERIALISED else u.accumulate
    of_products = math.sqrt(head_dim) * u.accumulate + 2 * factor_rounding(u, contract)
    of_score = unit * rows.roundings * rows.score
    return 2 * (of_products * rows.product + of_score + rows.operands)


def factor_rounding(u: Units, contract: Contract) -> float:
    """Unit roundoff to which the factors of a product are cut before it; 0 where they are not."""
    if u.result != DType.FLOAT32.unit_roundoff:
        return 0.0
    return {Contract.TF32: 2.0**-11, Contract.BF16X3: 2.0**-16}.get(contract, 0.0)


def eta(rows: RowTerms, u: Units, contract: Contract, head_dim: int) -> Tensor:
    """Relative error of each row's output against P|V|."""
    total = score_term(rows, u, contract, head_dim) + _sum_term(rows, u)
    total = total + 2 * factor_rounding(u, contract)
    if contract is Contract.MATERIALISED:
        return total + 3 * u.result
    return total + 2 * u.result * u.is_low


def gradient_coefficient(rows: RowTerms, u: Units, contract: Contract, head_dim: int) -> Tensor:
    """c_i of the module's docstring."""
    if not u.is_low:
        return 2 * eta(rows, u, contract, head_dim)
    return 8 * u.result + 2 * score_term(rows, u, contract, head_dim) + _sum_term(rows, u)


def lse_bound(rows: RowTerms, u: Units, contract: Contract, head_dim: int) -> Tensor:
    """Largest allowed error of each row's log-sum-exp, as the module's docstring derives it."""
    of_scores = score_term(rows, u, contract, head_dim) / 2
    of_scores = of_scores + math.sqrt(head_dim) * u.accumulate * rows.product
    of_weights = factor_rounding(u, contract)
    if u.is_low or contract is Contract.MATERIALISED:
        of_weights += u.result
    of_log = (2 * rows.score + 3 * (1 + rows.attended).log()) * u.accumulate
    underflow = u.tau * rows.attended
    return (of_scores + _sum_term(rows, u) + of_weights + of_log) * u.share + underflow


def _sum_term(rows: RowTerms, u: Units) -> Tensor:
    return (rows.attended.sqrt() + 4) * u.accumulate


@dataclass(frozen=True)
class Parts:
    """Magnitudes of one result: ``coefficient * scaled + fixed + tau * underflow`` bounds it."""

    scaled: Tensor
    fixed: Tensor
    underflow: Tensor


def bound_of(parts: Parts, coefficient: Tensor, terms: Tensor | int, u: Units) -> Tensor:
    """The bound; ``terms`` is how many products each element sums."""
    rounded = (coefficient * parts.scaled + parts.fixed) * u.share
    return rounded + u.tau * parts.underflow + u.flush * (1 + terms)


def finite_size(tensor: Tensor, wide: torch.dtype) -> Tensor:
    """Absolute values, 0 for what is not finite: patterns are compared there, not magnitudes."""
    return torch.nan_to_num(tensor.to(wide).abs(), nan=0.0, posinf=0.0)


def forward_parts(
    block: Block, scale: float, wide: torch.dtype, errors: OperandErrors | None
) -> tuple[Parts, RowTerms]:
    """Magnitudes of one block's output ``[R, D]`` and of its rows, in ``wide``: float32 suffices
    except for float64 itself.
    """
    probabilities, values = block.probabilities.to(wide), finite_size(block.v, wide)
    attended = None if block.keep is None else block.keep.to(wide)
    value_sum = values.sum(dim=0) if attended is None else attended @ values
    scaled = probabilities @ values
    fixed = torch.zeros_like(scaled)
    if errors is not None:
        fixed += probabilities @ errors.v[block.batch, block.kv_head].to(wide)
    parts = Parts(scaled, fixed, 1 + value_sum.expand_as(scaled))
    return parts, _row_terms(block, scale, wide, errors)


def _row_terms(
    block: Block, scale: float, wide: torch.dtype, errors: OperandErrors | None
) -> RowTerms:
    q, k = block.q.to(wide).abs(), block.k.to(wide).abs()
    score = block.product.abs().to(wide)
    if block.bias is not None:
        score += block.bias.abs().to(wide)
    if block.keep is None:
        attended = score.new_full(score.shape[:1], score.shape[-1])
    else:
        attended = block.keep.sum(dim=-1).to(wide)
    product = abs(scale) * _largest(q @ k.T, block.keep)
    operands = torch.zeros_like(product)
    if errors is not None:
        dq = errors.q[block.batch, block.head, block.rows].to(wide)
        dk = errors.k[block.batch, block.kv_head].to(wide)
        squares = _product_of_squares((dq, q), (k, dk))
        operands = SIGMAS * abs(scale) * _largest(squares, block.keep).sqrt()
    roundings = torch.full_like(product, 2 if block.bias is None else 3)
    return RowTerms(attended, product, _largest(score, block.keep), roundings, operands)


def _product_of_squares(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """``[R, S]``: sum_c left0^2 right0^2 + left1^2 right1^2."""
    return torch.cat(left, dim=-1).square() @ torch.cat(right, dim=-1).square().T


def _largest(values: Tensor, keep: Tensor | None) -> Tensor:
    """Largest of each row over the pairs that attend; 0 in a row that has none."""
    if not values.shape[-1]:
        return values.new_zeros(values.shape[:-1])
    if keep is not None:
        values = values.masked_fill(~keep, 0.0)
    return values.amax(dim=-1)
