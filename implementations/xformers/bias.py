"""A mask in xformers' terms: a class that the kernel knows, or one dense bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.interface import AttentionConfig, Case, MaskTensors, dense_bias

_ALIGNMENT = 8  # elements, of a dense bias along the keys


@dataclass(frozen=True)
class AppliedMask:
    """What the kernel gets, and what is left to do on its output.

    Args:
        bias: None, one of xformers' bias classes, or ``[B, H, L, S]`` (``[B, G, R, L, S]`` for
            grouped heads).
        excluded_rows: ``[.., L, 1]``, True = the query attends to nothing.
    """

    bias: Any = None
    excluded_rows: Tensor | None = None

    def empty_excluded_rows(self, output: Tensor) -> Tensor:
        """``[B, H, L, D]`` with zeros where a query attends to nothing."""
        rows = self.excluded_rows
        return output if rows is None else output.masked_fill(rows, 0.0)


def positional_bias(c: AttentionConfig) -> Any:
    """The mask as one of xformers' classes, None for no mask, ``Tensor`` where no class says it.

    ``LowerTriangularMask`` is top-left aligned.
    """
    from xformers.ops.fmha import attn_bias

    features, window = c.mask.features, c.mask.window
    if not features:
        return None
    if features in ({"causal"}, {"top_left"}):
        return attn_bias.LowerTriangularMask()
    if features == {"bottom_right"}:
        return attn_bias.LowerTriangularFromBottomRightMask()
    if window is None:
        return Tensor
    if features in ({"causal", "window"}, {"bottom_right", "window"}):
        return attn_bias.LowerTriangularFromBottomRightLocalAttentionMask(window)
    if features == {"window"}:
        return attn_bias.LocalAttentionFromBottomRightMask(window - 1, window - 1)
    return Tensor


def takes_densely(c: AttentionConfig, forward: Any) -> bool:
    """Whether this operator gets the mask as a dense bias."""
    bias, supported = positional_bias(c), forward.SUPPORTED_ATTN_BIAS_TYPES
    if bias is Tensor or type(bias) not in supported:
        return True
    # Queries that see no key: of the kernels that take a dense bias, none promises zeros.
    has_empty_rows = "bottom_right" in c.mask.features and c.kv_seq_len < c.seq_len
    return has_empty_rows and Tensor in supported


def applied_mask(case: Case, masks: MaskTensors, forward: Any) -> AppliedMask:
    """The mask for this operator, made once."""
    c = case.config
    if not takes_densely(c, forward):
        return AppliedMask(positional_bias(c))
    bias = dense_bias(c, masks, case.device)
    assert bias is not None
    bias = bias.expand(*bias.shape[:2], c.seq_len, c.kv_seq_len)
    rows = torch.isneginf(bias).all(dim=-1, keepdim=True)
    padded = F.pad(bias.masked_fill(rows, 0.0), (0, -c.kv_seq_len % _ALIGNMENT))
    full = padded[..., : c.kv_seq_len].expand(c.batch_size, c.num_heads, -1, -1)
    if c.group_size > 1 and not case.mode.is_training:
        # Splitting a dimension keeps this a view.
        full = full.view(c.batch_size, c.num_kv_heads, c.group_size, c.seq_len, c.kv_seq_len)
    return AppliedMask(full, rows if bool(rows.any()) else None)
