"""Expected outputs of scope attention, from one pass of the oracle.

Shapes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len, n wanted
rows.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from harness.attention import Case
from harness.interface import Contract
from harness.numerics.attention_pass import AttentionPass, run_attention_pass, wide_dtype
from harness.numerics.certification import row_selection, slice_selection
from harness.numerics.expected import SLICE, Expected, Selection
from harness.numerics.problem import Problem, on_cpu, query_heads, sliced
from harness.numerics.rounding import lse_bound
from harness.numerics.yardstick import yardstick_key_gradients
from harness.tensors import AttentionInputs, torch_dtype

_QUERY_AXES = ("batch", "head", "query", "channel")
_KEY_AXES = ("batch", "kv_head", "key", "channel")


def expected_attention(
    case: Case, inputs: AttentionInputs, done: AttentionPass, rows: Tensor | None
) -> dict[str, Expected]:
    by_query, by_key = _may_be_nan(inputs, case.config.group_size, rows)
    sampled = row_selection(case, rows)

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
            selection=sampled if of_queries else None,
            may_be_nan=by_query if of_queries else by_key,
        )

    exact = done.exact
    outputs = {"o": made("o", exact.o, True), "lse": _lse(case, done, sampled, by_query)}
    if exact.dq is not None and exact.dk is not None and exact.dv is not None:
        outputs["dq"] = made("dq", exact.dq, True)
        if rows is not None:
            return outputs  # dk and dv sum over all rows
        outputs["dk"] = made("dk", exact.dk, False)
        outputs["dv"] = made("dv", exact.dv, False)
    return outputs


def expected_key_gradients(
    case: Case,
    inputs: AttentionInputs,
    problem: Problem,
    d_output: Tensor,
    slices: tuple[tuple[int, int], ...],
) -> dict[str, Expected]:
    """dk and dv of some key heads, from all rows of the query heads that share them."""
    part, selection = sliced(problem, slices), slice_selection(case, slices)
    d_part = query_heads(d_output, slices, case.config.group_size)
    done = run_attention_pass(part, case.config.dtype, None, d_part)
    plain = yardstick_key_gradients(part, d_part)
    outputs = {}
    for name, value in (("dk", done.exact.dk), ("dv", done.exact.dv)):
        assert value is not None
        error = (plain[name].double() - value).abs()

        def bound(contract: Contract, name: str = name) -> Tensor:
            return done.bound(name, contract).squeeze(1)

        outputs[name] = Expected(
            value=value.squeeze(1),
            scaled=getattr(done.magnitudes, name)[0].squeeze(1),
            bound=cache(bound),
            axes=(SLICE, "key", "channel"),
            head_axes=(0,),
            row_axes=(0, 1),
            shape=tuple(inputs.k.shape),
            dtype=torch_dtype(case.config.dtype),
            selection=selection,
            yardstick=float(error.max()) if error.numel() else 0.0,
        )
    return outputs


def _lse(
    case: Case, done: AttentionPass, sampled: Selection | None, by_query: Tensor | None
) -> Expected:
    c, value = case.config, done.exact.lse
    return Expected(
        value=value,
        scaled=1 + torch.where(value.isfinite(), value.abs(), 0.0),
        bound=cache(lambda contract: lse_bound(done.rows, done.units, contract, c.head_dim)),
        axes=_QUERY_AXES[:3],
        head_axes=(0, 1),
        row_axes=(),
        shape=(c.batch_size, c.num_heads, c.seq_len),
        dtype=wide_dtype(c.dtype),
        selection=sampled,
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
