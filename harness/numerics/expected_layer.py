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
from harness.numerics.certification import row_selection
from harness.numerics.expected import Expected, Selection
from harness.numerics.layer_pass import LayerPass, Product
from harness.tensors import LayerInputs, torch_dtype

_OF_X = ("batch", "query", "channel")
_OF_X_KV = ("batch", "key", "channel")


def expected_layer(
    case: Case, inputs: LayerInputs, layer: LayerPass, rows: Tensor | None
) -> dict[str, Expected]:
    made = partial(_joined, case, layer)
    of_rows = row_selection(case, rows)
    y = made([(layer.y, "o")], _total, inputs.x, _OF_X, (), (0, 1), of_rows)
    outputs = {"y": y} | _of_sources(case, inputs, layer, rows)
    if layer.dw_o is None:
        return outputs
    packed = list(zip(layer.dw, ("dq", "dk", "dv"), strict=True))
    w_axes, o_axes = ("projected_head", "channel", "feature"), ("feature", "head", "channel")
    outputs["dw_qkv"] = made(packed, _stacked, inputs.weights.w_qkv, w_axes, (0,), (0, 1))
    outputs["dw_o"] = made([(layer.dw_o, "o")], _total, inputs.weights.w_o, o_axes, (1,), (0,))
    return outputs


def _of_sources(
    case: Case, inputs: LayerInputs, layer: LayerPass, rows: Tensor | None
) -> dict[str, Expected]:
    if not layer.dx:
        return {}
    made = partial(_joined, case, layer)
    of_q, *of_kv = zip(layer.dx, ("dq", "dk", "dv"), strict=True)
    of_rows = of_keys = None
    if rows is not None and layer.keys is not None:
        fed = f"fed back from {len(rows)} of {case.config.seq_len} rows"
        of_rows = Selection("query", rows, f"{len(rows)} of {case.config.seq_len} rows, {fed}")
        whole = case.config.kv_seq_len
        of_keys = Selection("key", layer.keys, f"{len(layer.keys)} of {whole} keys, {fed}")
    if inputs.is_self_attention:
        return {"dx": made([of_q, *of_kv], _total, inputs.x, _OF_X, (), (0, 1), of_rows)}
    return {
        "dx": made([of_q], _total, inputs.x, _OF_X, (), (0, 1), of_rows),
        "dx_kv": made(of_kv, _total, inputs.x_kv, _OF_X_KV, (), (0, 1), of_keys),
    }


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(dim=0)


def _stacked(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts)


def _joined(
    case: Case,
    layer: LayerPass,
    parts: Sequence[tuple[Product, str]],
    join: Callable[[list[Tensor]], Tensor],
    like: Tensor,
    axes: tuple[str, ...],
    head_axes: tuple[int, ...],
    row_axes: tuple[int, ...],
    selection: Selection | None = None,
) -> Expected:
    """An output made of products, each with the attention result that goes into it, by name."""
    attention = layer.attention

    def wanted(name: str, result: Tensor) -> Tensor:
        of_keys = layer.keys is not None and name in ("dk", "dv")
        return result[:, :, layer.keys] if of_keys else result

    def bound(contract: Contract) -> Tensor:
        return join(
            [part.bound(wanted(name, attention.bound(name, contract))) for part, name in parts]
        )

    def scaled(part: Product, name: str) -> Tensor:
        return part.scaled(wanted(name, getattr(attention.magnitudes, name)[0]))

    return Expected(
        value=join([part.value for part, _ in parts]),
        scaled=join([scaled(part, name) for part, name in parts]),
        bound=cache(bound),
        axes=axes,
        head_axes=head_axes,
        row_axes=row_axes,
        shape=tuple(like.shape),
        dtype=torch_dtype(case.config.dtype),
        selection=selection,
    )
