"""What every output of a case should be, from one pass of the oracle.

Shapes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len,
E hidden_size, n wanted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from harness.attention import Case
from harness.interface import Contract
from harness.numerics.attention_pass import AttentionPass, run_attention_pass
from harness.numerics.layer_pass import LayerPass, Product, run_layer_pass
from harness.numerics.measures import Expected, error_of
from harness.numerics.rounding import lse_bound
from harness.numerics.score_blocks import Problem, attention_problem, on_cpu
from harness.numerics.yardstick import yardstick_outputs
from harness.tensors import AttentionInputs, Inputs, LayerInputs, torch_dtype

_QUERY_AXES = ("batch", "head", "query", "channel")
_KEY_AXES = ("batch", "kv_head", "key", "channel")


def expected_outputs(case: Case, inputs: Inputs, rows: Tensor | None) -> dict[str, Expected]:
    """Expected outputs by name, of the wanted rows; dk, dv and the
    layer's gradients only where all rows are wanted."""
    if isinstance(inputs, LayerInputs):
        problem, layer = run_layer_pass(case, inputs, rows)
        expected = _layer(case, inputs, layer, rows)
    else:
        problem = attention_problem(case.config, inputs)
        d_output = None if inputs.grad_output is None else on_cpu(inputs.grad_output)
        done = run_attention_pass(problem, case.config.dtype, rows, d_output)
        expected = _attention(case, inputs, done, rows)
    return _with_yardstick(case, inputs, problem, rows, expected)


def _attention(
    case: Case, inputs: AttentionInputs, done: AttentionPass, rows: Tensor | None
) -> dict[str, Expected]:
    by_query, by_key = _may_be_nan(inputs, case.config.group_size, rows)

    def made(name: str, value: Tensor, of_queries: bool) -> Expected:
        return Expected(
            value=value,
            scaled=getattr(done.magnitudes, name)[0],
            bound=cache(partial(done.bound, name)),
            axes=_QUERY_AXES if of_queries else _KEY_AXES,
            head_axes=(0, 1),
            row_axes=(0, 1, 2),
            shape=tuple((inputs.q if of_queries else inputs.k).shape),
            dtype=torch_dtype(case.config.dtype),
            rows=rows if of_queries else None,
            may_be_nan=by_query if of_queries else by_key,
        )

    exact = done.exact
    outputs = {"o": made("o", exact.o, True), "lse": _lse(case, done, rows, by_query)}
    if exact.dq is not None and exact.dk is not None and exact.dv is not None:
        outputs["dq"] = made("dq", exact.dq, True)
        if rows is not None:
            return outputs  # dk and dv sum over all rows
        outputs["dk"] = made("dk", exact.dk, False)
        outputs["dv"] = made("dv", exact.dv, False)
    return outputs


def _lse(case: Case, done: AttentionPass, rows: Tensor | None, by_query: Tensor | None) -> Expected:
    c, value = case.config, done.exact.lse
    return Expected(
        value=value,
        scaled=1 + torch.where(value.isfinite(), value.abs(), 0.0),
        bound=cache(lambda contract: lse_bound(done.rows, value, done.units, contract, c.head_dim)),
        axes=_QUERY_AXES[:3],
        head_axes=(0, 1),
        row_axes=(0, 1, 2),
        shape=(c.batch_size, c.num_heads, c.seq_len),
        dtype=None,
        rows=rows,
        may_be_nan=None if by_query is None else by_query.squeeze(-1),
    )


def _may_be_nan(
    inputs: AttentionInputs, group_size: int, rows: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Where a NaN is a policy: ``[B, H, n, 1]`` for queries, ``[B, G, 1, 1]`` for keys."""
    q, k, v = on_cpu(inputs.q), on_cpu(inputs.k), on_cpu(inputs.v)
    if all(bool(t.isfinite().all()) for t in (q, k, v)):
        return None, None
    bad_q = ~q.isfinite().all(dim=-1, keepdim=True)
    bad_q = bad_q if rows is None else bad_q[:, :, rows]
    bad_kv = ~(k.isfinite() & v.isfinite()).flatten(2).all(dim=-1)[..., None, None]
    batch_size, num_kv_heads = k.shape[:2]
    in_group = bad_q.reshape(batch_size, num_kv_heads, group_size * bad_q.shape[2])
    in_group = in_group.any(dim=-1)[..., None, None]
    return bad_q | bad_kv.repeat_interleave(group_size, dim=1), bad_kv | in_group


def _layer(
    case: Case, inputs: LayerInputs, layer: LayerPass, rows: Tensor | None
) -> dict[str, Expected]:
    of_x = ("batch", "query", "channel")
    of_x_kv = ("batch", "key", "channel")
    made = partial(_joined, case, layer.attention)
    outputs = {"y": made([(layer.y, "o")], _total, inputs.x, of_x, (), (0, 1), rows)}
    if layer.dw_o is None:
        return outputs
    of_q, *of_kv = zip(layer.dx, ("dq", "dk", "dv"), strict=True)
    if inputs.is_self_attention:
        outputs["dx"] = made([of_q, *of_kv], _total, inputs.x, of_x, (), (0, 1))
    else:
        outputs["dx"] = made([of_q], _total, inputs.x, of_x, (), (0, 1))
        outputs["dx_kv"] = made(of_kv, _total, inputs.x_kv, of_x_kv, (), (0, 1))
    packed = list(zip(layer.dw, ("dq", "dk", "dv"), strict=True))
    w_axes, o_axes = ("projected_head", "channel", "feature"), ("feature", "head", "channel")
    outputs["dw_qkv"] = made(packed, _stacked, inputs.weights.w_qkv, w_axes, (0,), (0, 1))
    outputs["dw_o"] = made([(layer.dw_o, "o")], _total, inputs.weights.w_o, o_axes, (1,), (0,))
    return outputs


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(dim=0)


def _stacked(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts)


def _joined(
    case: Case,
    attention: AttentionPass,
    parts: Sequence[tuple[Product, str]],
    join: Callable[[list[Tensor]], Tensor],
    like: Tensor,
    axes: tuple[str, ...],
    head_axes: tuple[int, ...],
    row_axes: tuple[int, ...],
    rows: Tensor | None = None,
) -> Expected:
    """An output made of products, each with the attention result that goes into it, by name."""

    def bound(contract: Contract) -> Tensor:
        return join([part.bound(attention.bound(name, contract)) for part, name in parts])

    return Expected(
        value=join([part.value for part, _ in parts]),
        scaled=join([part.scaled(getattr(attention.magnitudes, name)[0]) for part, name in parts]),
        bound=cache(bound),
        axes=axes,
        head_axes=head_axes,
        row_axes=row_axes,
        shape=tuple(like.shape),
        dtype=torch_dtype(case.config.dtype),
        rows=rows,
    )


def _with_yardstick(
    case: Case,
    inputs: Inputs,
    problem: Problem,
    rows: Tensor | None,
    expected: dict[str, Expected],
) -> dict[str, Expected]:
    """Adds the largest error of plain attention in the same dtype, where that can be had."""
    for name, output in yardstick_outputs(case.config, inputs, problem, rows).items():
        output = output.cpu().reshape(expected[name].value.shape)
        error = error_of(output, expected[name]).abs()
        largest = float(error.max()) if error.numel() else 0.0
        expected[name] = replace(expected[name], yardstick=largest)
    return expected
