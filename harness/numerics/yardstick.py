"""Plain softmax attention as the inputs' own dtype would do it: what "as exact as naive" is
measured against.

Scale before the product, so that float16 scores do not overflow; products summed in float32;
scores, probabilities and results rounded to the dtype after each step. Computed in float32 with
explicit rounding, which gives these numbers on any machine and device alike, and quickly where the
dtype has no fast product. It takes part in no ranking.

Shapes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len, E
    hidden_size,
R rows of a block, n wanted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.attention import AttentionConfig
from harness.numerics.attention_pass import wide_dtype
from harness.numerics.problem import Problem, on_cpu
from harness.numerics.score_blocks import bias_rows, keep_rows, rows_of_block
from harness.tensors import AttentionInputs, Inputs, LayerInputs, torch_dtype

Rounding = Callable[[Tensor], Tensor]


def yardstick_outputs(
    config: AttentionConfig, inputs: Inputs, problem: Problem, rows: Tensor | None
) -> Mapping[str, Tensor]:
    """Outputs by name, of the wanted rows; gradients that sum over rows only where all are wanted.

    Args:
        problem: The same problem, for its masks.
    """
    wide, rounded = wide_dtype(config.dtype), _rounding(config)
    operands = {name: on_cpu(tensor).to(wide) for name, tensor in inputs.leaves.items()}
    d_output = None if inputs.grad_output is None else on_cpu(inputs.grad_output).to(wide)
    if isinstance(inputs, AttentionInputs):
        posed = replace(problem, q_BHLD=operands["q"], k_BGSD=operands["k"], v_BGSD=operands["v"])
        return _attention(posed, rounded, rows, d_output)
    return _layer(problem, inputs, operands, rounded, rows, d_output)


def yardstick_key_gradients(problem: Problem, d_output: Tensor) -> Mapping[str, Tensor]:
    """``dk`` and ``dv`` of a problem in its config's dtype, from d_output ``[B, H, L, D]``."""
    wide = wide_dtype(problem.config.dtype)
    q, k, v = (t.to(wide) for t in (problem.q_BHLD, problem.k_BGSD, problem.v_BGSD))
    posed = replace(problem, q_BHLD=q, k_BGSD=k, v_BGSD=v)
    outputs = _attention(posed, _rounding(problem.config), None, d_output.to(wide))
    return {name: outputs[name] for name in ("dk", "dv")}


def _rounding(config: AttentionConfig) -> Rounding:
    dtype, wide = torch_dtype(config.dtype), wide_dtype(config.dtype)
    return lambda tensor: tensor.to(dtype).to(wide)


def _layer(
    problem: Problem,
    inputs: LayerInputs,
    operands: Mapping[str, Tensor],
    rounded: Rounding,
    rows: Tensor | None,
    dy: Tensor | None,
) -> Mapping[str, Tensor]:
    c = problem.config
    x, w_o = operands["x"], operands["w_o"]
    x_kv = operands.get("x_kv", x)
    widths = [c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim]
    w_q, w_k, w_v = torch.split(operands["w_qkv"], widths)
    q, k, v = (
        _split_heads(rounded(F.linear(a, w)), c.head_dim)
        for a, w in ((x, w_q), (x_kv, w_k), (x_kv, w_v))
    )
    posed = replace(problem, q_BHLD=q, k_BGSD=k, v_BGSD=v)
    if dy is None or rows is not None:
        inner = _attention(posed, rounded, rows, None)
        return {"y": rounded(F.linear(_join_heads(inner["o"]), w_o))}
    d_heads = _split_heads(rounded(dy @ w_o), c.head_dim)
    inner = _attention(posed, rounded, None, d_heads)
    o, dq, dk, dv = (_join_heads(inner[name]) for name in ("o", "dq", "dk", "dv"))
    outputs = {
        "y": rounded(F.linear(o, w_o)),
        "dw_o": rounded(dy.flatten(0, 1).T @ o.flatten(0, 1)),
        "dw_qkv": rounded(
            torch.cat(
                [
                    d.flatten(0, 1).T @ source.flatten(0, 1)
                    for d, source in ((dq, x), (dk, x_kv), (dv, x_kv))
                ]
            )
        ),
    }
    of_x, of_x_kv = dq @ w_q, dk @ w_k + dv @ w_v
    if inputs.is_self_attention:
        return outputs | {"dx": rounded(of_x + of_x_kv)}
    return outputs | {"dx": rounded(of_x), "dx_kv": rounded(of_x_kv)}


def _split_heads(packed: Tensor, head_dim: int) -> Tensor:
    batch_size, length, width = packed.shape
    return packed.view(batch_size, length, width // head_dim, head_dim).transpose(1, 2)


def _join_heads(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def _attention(
    problem: Problem, rounded: Rounding, rows: Tensor | None, d_output: Tensor | None
) -> dict[str, Tensor]:
    c = problem.config
    wanted = torch.arange(c.seq_len) if rows is None else rows
    sizes = (c.batch_size, c.num_heads, len(wanted))
    new = problem.q_BHLD.new_zeros
    outputs = {"o": new(*sizes, c.head_dim), "lse": new(sizes)}
    if d_output is not None:
        outputs["dq"] = torch.zeros_like(outputs["o"])
        outputs |= {name: torch.zeros_like(problem.k_BGSD) for name in ("dk", "dv")}
    for batch in range(c.batch_size):
        for head in range(c.num_heads):
            _head(problem, batch, head, wanted, rounded, d_output, outputs)
    for name in {"dk", "dv"} & set(outputs):
        outputs[name] = rounded(outputs[name])
        if rows is not None:
            del outputs[name]
    return outputs


def _head(
    problem: Problem,
    batch: int,
    head: int,
    wanted: Tensor,
    rounded: Rounding,
    d_output: Tensor | None,
    outputs: dict[str, Tensor],
) -> None:
    kv_head = head // problem.config.group_size
    k, v = problem.k_BGSD[batch, kv_head], problem.v_BGSD[batch, kv_head]
    d_keys, d_values = torch.zeros_like(k), torch.zeros_like(v)
    size = rows_of_block(len(k))
    for start in range(0, len(wanted), size):
        span = slice(start, min(start + size, len(wanted)))
        rows = wanted[span]
        q = rounded(problem.q_BHLD[batch, head, rows] * problem.config.scale)
        probabilities, lse = _probabilities(problem, batch, head, rows, q, k, rounded)
        outputs["lse"][batch, head, span] = lse
        outputs["o"][batch, head, span] = rounded(probabilities @ v)
        if d_output is None:
            continue
        d_block = d_output[batch, head, rows]
        d_probabilities = rounded(d_block @ v.T)
        delta = (probabilities * d_probabilities).sum(dim=-1, keepdim=True)
        d_scores = rounded(probabilities * (d_probabilities - delta))
        d_scaled = rounded(d_scores @ k)
        outputs["dq"][batch, head, span] = rounded(d_scaled * problem.config.scale)
        d_keys += d_scores.T @ q
        d_values += probabilities.T @ d_block
    if d_output is not None:
        outputs["dk"][batch, kv_head] += rounded(d_keys)
        outputs["dv"][batch, kv_head] += rounded(d_values)


def _probabilities(
    problem: Problem,
    batch: int,
    head: int,
    rows: Tensor,
    q: Tensor,
    k: Tensor,
    rounded: Rounding,
) -> tuple[Tensor, Tensor]:
    """``[R, S]``, and the log-sum-exp ``[R]``, which nothing rounds to the dtype."""
    bias = bias_rows(problem, batch, head, rows)
    keep = keep_rows(problem, batch, head, rows, bias)
    scores = rounded(q @ k.T)
    if bias is not None:
        scores = rounded(scores + bias.to(scores.dtype))
    if keep is not None:
        scores.masked_fill_(~keep, -torch.inf)
    probabilities = scores.softmax(dim=-1)
    lse = _log_sum_exp(scores, probabilities)
    if keep is not None:
        probabilities.masked_fill_(~keep, 0.0)
    return rounded(probabilities), lse


def _log_sum_exp(scores: Tensor, probabilities: Tensor) -> Tensor:
    """From the largest probability, which is one over the sum: cheaper than exponentials anew."""
    if not scores.shape[-1]:
        return scores.new_full(scores.shape[:1], -torch.inf)
    return scores.amax(dim=-1) - probabilities.amax(dim=-1).nan_to_num(nan=1.0).log()
