"""Expected outputs of scope layer, from one pass of the oracle.

Shapes: B batch_size, L seq_len, S kv_seq_len, E hidden_size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from harness.attention import Case
from harness.interface import Contract
from harness.numerics.attention_pass import AttentionPass
from harness.numerics.certification import row_selection
from harness.numerics.expected import Expected
from harness.numerics.layer_pass import LayerPass, Product
from harness.tensors import LayerInputs, torch_dtype


def expected_layer(
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
        selection=row_selection(case, rows),
    )
