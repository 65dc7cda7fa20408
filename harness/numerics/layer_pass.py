"""The layer in float64, and how far the rounding of its projections may move each result.

Every projection is a product of an operand that may itself be in error, e_a, with an exact one.
A running error bound through it, with the factor 4 for a sum of errors that are independent::

    |e| <= 4 sqrt(e_a^2 b^2) + r u |a b| + sqrt(n) u32 (|a b| + sqrt(a^2 b^2))

first what the operand's error becomes, then the r roundings of the result to the inputs' dtype,
then the accumulation of n terms in float32: partial sums of terms in no particular order stay
within the result and the root of the squared terms. All by linearity from the same product.

Shapes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, E hidden_size, n wanted
rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.attention import Case
from harness.numerics.attention_pass import AttentionPass, run_attention_pass, wide_dtype
from harness.numerics.problem import Problem, masks_on_cpu, on_cpu
from harness.numerics.reference import HeadWeights, from_heads, head_weights, to_heads
from harness.numerics.rounding import SIGMAS, OperandErrors, Units, units
from harness.tensors import LayerInputs

Bilinear = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Product:
    """A linear step of the layer: value, what its errors are measured against, and their bound.

    Args:
        value: Float64.
        rounding: The part of the bound that the operand's error has no part in.
        underflow: What results too small for the dtype add to it.
    """

    value: Tensor
    rounding: Tensor
    underflow: float
    step: Bilinear
    exact_operand: Tensor

    def bound(self, operand_error: Tensor) -> Tensor:
        """Largest allowed error, given that of the inexact operand."""
        carried = self.step(operand_error.to(self.rounding).square(), self.exact_operand.square())
        return self.rounding + SIGMAS * carried.sqrt() + self.underflow

    def scaled(self, operand_scaled: Tensor) -> Tensor:
        """What relative errors are measured against: the sum of absolute terms."""
        return self.step(operand_scaled, self.exact_operand.abs())


def _product(
    step: Bilinear,
    a: Tensor,
    b: Tensor,
    count: int,
    u: Units,
    wide: torch.dtype,
    roundings: int = 1,
) -> Product:
    value = step(a, b)
    exact_operand = b.to(wide)
    squares = step(a.to(wide).square(), exact_operand.square()).sqrt()
    size = value.to(wide).abs()
    accumulated = math.sqrt(count) * u.accumulate * (size + squares)
    rounding = roundings * u.result * size + accumulated + u.tau
    if roundings > 1:  # parts are rounded before they are added
        rounding += roundings * u.result * squares
    underflow = u.tau + u.flush * (1 + count)
    if wide is torch.float32:  # squares of errors below 1e-19 are lost
        underflow += math.sqrt(count) * 2.0**-60
    return Product(value, rounding * u.share, underflow, step, exact_operand)


@dataclass(frozen=True)
class LayerPass:
    """Exact results of a layer; those of gradients are None unless asked for.

    Args:
        y: Output, ``[B, n, E]``.
        dx: What dq, dk and dv, in this order, contribute to the gradients of their sources.
        keys: ``[m]`` positions at which dx has dk and dv; None for all.
        dw: Gradients of W_Q, W_K, W_V by head, ``[H or G, D, E]``.
        dw_o: ``[E, H, D]``.
    """

    attention: AttentionPass
    y: Product
    dx: tuple[Product, ...] = ()
    dw: tuple[Product, ...] = ()
    dw_o: Product | None = None
    keys: Tensor | None = None


def run_layer_pass(
    case: Case, inputs: LayerInputs, rows: Tensor | None, keys: Tensor | None = None
) -> tuple[Problem, LayerPass]:
    """Exact results and rounding of the wanted rows; gradients if the inputs bring grad_output.

    Args:
        rows: ``[n]`` positions of queries; None for all, which gradients need unless there are
            ``keys``.
        keys: ``[m]`` positions: gradients of the sources alone, dq at ``rows``, dk and dv here,
            where grad_output is zero in all other rows than those.

    Returns:
        The attention inside, on exact projections, and the pass.
    """
    c, u, wide = case.config, units(case.config.dtype), wide_dtype(case.config.dtype)
    w = head_weights(c, inputs.weights)
    x, x_kv = on_cpu(inputs.x).double(), on_cpu(inputs.x_kv).double()
    q, k, v = (
        _product(to_heads, source, weight, c.hidden_size, u, wide)
        for source, weight in ((x, w.w_q_HDE), (x_kv, w.w_k_GDE), (x_kv, w.w_v_GDE))
    )
    problem = Problem(c, q.value, k.value, v.value, masks_on_cpu(inputs.masks))
    dy = None
    if inputs.grad_output is not None and (rows is None or keys is not None):
        dy = on_cpu(inputs.grad_output).double()
    d_output = (
        None if dy is None else _product(_grad_to_heads, dy, w.w_o_EHD, c.hidden_size, u, wide)
    )
    errors = OperandErrors(
        q.rounding, k.rounding, v.rounding, None if d_output is None else d_output.rounding
    )
    attention = run_attention_pass(
        problem, c.dtype, rows, None if d_output is None else d_output.value, errors
    )
    width = c.num_heads * c.head_dim
    y = _product(from_heads, attention.exact.o, w.w_o_EHD, width, u, wide)
    if dy is None:
        return problem, LayerPass(attention, y)
    forward = LayerPass(attention, y, dx=_of_sources(case, attention, w, keys), keys=keys)
    return problem, forward if keys is not None else _with_weights(case, forward, x, x_kv, dy)


def _of_sources(
    case: Case, attention: AttentionPass, w: HeadWeights, keys: Tensor | None
) -> tuple[Product, ...]:
    c, u, wide = case.config, units(case.config.dtype), wide_dtype(case.config.dtype)
    dq, dk, dv = attention.exact.gradients
    if keys is not None:
        dk, dv = dk[:, :, keys], dv[:, :, keys]
    # Implementations may project the three together or one by one, each result rounded.
    return tuple(
        _product(_grad_of_source, part, weight, weight.shape[0] * c.head_dim, u, wide, roundings=2)
        for part, weight in ((dq, w.w_q_HDE), (dk, w.w_k_GDE), (dv, w.w_v_GDE))
    )


def _with_weights(case: Case, forward: LayerPass, x: Tensor, x_kv: Tensor, dy: Tensor) -> LayerPass:
    c, u, wide = case.config, units(case.config.dtype), wide_dtype(case.config.dtype)
    exact = forward.attention.exact
    dw = tuple(
        _product(_grad_of_weight, part, source, c.batch_size * source.shape[1], u, wide)
        for part, source in zip(exact.gradients, (x, x_kv, x_kv), strict=True)
    )
    dw_o = _product(_grad_of_output_weight, exact.o, dy, c.batch_size * c.seq_len, u, wide)
    return replace(forward, dw=dw, dw_o=dw_o)


def _grad_to_heads(dy: Tensor, w_o: Tensor) -> Tensor:
    return torch.einsum("ble,ehd->bhld", dy, w_o)


def _grad_of_source(d_head: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("bhld,hde->ble", d_head, w)


def _grad_of_weight(d_head: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("bhld,ble->hde", d_head, x)


def _grad_of_output_weight(o: Tensor, dy: Tensor) -> Tensor:
    return torch.einsum("bhld,ble->ehd", o, dy)
