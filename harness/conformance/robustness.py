"""Checks of what real users were bitten by: masked garbage, empty rows, strides, state, bad
tensors.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from harness.attention import Case, DType
from harness.conformance import cells
from harness.conformance.subject import (
    Axes,
    Subject,
    attention_inputs,
    of_attention,
)
from harness.tensors import AttentionInputs


def check_rows_without_keys(subject: Subject) -> None:
    """A query without any key gives exactly 0, and finite gradients."""
    for axes in cells.rows_without_keys():
        for mode in ("forward", "backward"):
            for case in subject.supported([{**axes, "mode": mode}]):
                subject.require_right(case)


def check_garbage_below_masks(subject: Subject) -> None:
    """Finite garbage in masked keys and values never reaches the output or a gradient."""
    masks = ("padding:0.5", "top_left", "keep:random", "padding:0.5+bias:random", "document")
    for mask in masks:
        for mode in ("forward", "backward"):
            axes = {**cells.SMALL, "seq_len": 6, "kv_seq_len": 21, "mask": mask, "mode": mode}
            for case in subject.supported([of_attention(axes)]):
                inputs = attention_inputs(case)
                _spoil_masked_keys(case, inputs)
                subject.require_right(case, inputs)


def _spoil_masked_keys(case: Case, inputs: AttentionInputs) -> None:
    """Put garbage into every key that no query of its batch entry attends to, and set its value."""
    c = case.config
    key = torch.arange(c.kv_seq_len)
    seen = torch.ones(c.batch_size, c.kv_seq_len, dtype=torch.bool)
    if c.is_causal:
        seen &= key < c.seq_len + c.causal_offset
    for mask in (inputs.masks.key_padding, inputs.masks.keep):
        if mask is not None:
            of_keys = mask if mask is inputs.masks.key_padding else mask.cpu().any(dim=-2)
            seen &= of_keys.cpu().reshape(-1, c.kv_seq_len)
    # In float16 1e10 is infinite, and so would its products with a gradient be from 6e4 on.
    largest = 1e3 if inputs.k.dtype is torch.float16 else 1e10
    for tensor in (inputs.k, inputs.v):
        garbage = torch.full_like(tensor, largest)
        tensor.copy_(torch.where(seen[:, None, :, None].to(tensor.device), tensor, garbage))


def check_additive_masks(subject: Subject) -> None:
    """-inf in a bias excludes a pair as a boolean mask does; the smallest number does not."""
    axes = {**cells.SMALL, "seq_len": 6, "kv_seq_len": 9, "mask": "bias:random"}
    for mode in ("forward", "backward"):
        for case in subject.supported([of_attention({**axes, "mode": mode})]):
            inputs = attention_inputs(case)
            assert inputs.masks.bias is not None
            inputs.masks.bias[:, :, 1:, 4:6] = -math.inf
            inputs.masks.bias[:, :, 2] = -math.inf
            subject.require_right(case, inputs)
    if subject.dtype is DType.FLOAT16:
        return  # its smallest number, -65504, does not swallow a float32 score: no one answer
    for case in subject.supported([of_attention({**axes, "batch_size": 2})]):
        inputs = attention_inputs(case)
        assert inputs.masks.bias is not None
        inputs.masks.bias[:, :, 3] = torch.finfo(inputs.q.dtype).min
        mean = inputs.v.double().mean(dim=2)
        unit = case.config.dtype.unit_roundoff
        got = subject.output(case, inputs)[:, :, 3]
        allowed = (16 * unit * inputs.v.double().abs().amax(dim=2)).cpu()
        claim = "a row whose bias is the smallest number everywhere is the mean of the values"
        subject.require_close(case, got, mean, allowed, claim)


def check_score_range(subject: Subject) -> None:
    """Scores beyond float16's range, and scores all far below or above 0, do not overflow."""
    for case in subject.supported(
        [of_attention({"hidden_size": 128, "num_heads": 1, "seq_len": 4})]
    ):
        inputs = attention_inputs(case)
        for tensor in (inputs.q, inputs.k, inputs.v):
            tensor.fill_(32.0)
        subject.require_right(case, inputs)
    for sign in (-1.0, 1.0):
        axes: Axes = {"hidden_size": 16, "num_heads": 1, "seq_len": 21, "kv_seq_len": 40}
        for case in subject.supported([of_attention(axes)]):
            inputs = attention_inputs(case)
            inputs.q.fill_(16.0)
            inputs.k.copy_(sign * 24.0 + (inputs.k > 0) / 16.0)
            subject.require_right(case, inputs)


def check_nan_in_nan_out(subject: Subject) -> None:
    """A NaN or infinite query row gives NaN in its own rows, and nowhere else."""
    for mask in ("none", "causal", "padding:0.3", "keep:random", "bias:random"):
        for seq_len in (1, 8, 64):
            axes = {**cells.SMALL, "seq_len": seq_len, "mask": mask, "inputs": "nonfinite"}
            for case in subject.supported([of_attention(axes)]):
                subject.require_right(case)


def check_strides(subject: Subject) -> None:
    """Transposed, sliced and expanded operands give the result of contiguous ones."""
    for mode in ("forward", "backward"):
        axes = {**cells.UNEQUAL, "inputs": "strided", "mode": mode}
        for case in subject.supported([of_attention(axes)]):
            subject.require_right(case)
    for case in subject.supported([of_attention({**cells.UNEQUAL, "head_dim": 8})]):
        plain = attention_inputs(case)
        for view in (_sliced, _offset, _channels_first, _expanded):
            inputs = replace(plain, q=view(plain.q), k=view(plain.k), v=view(plain.v))
            subject.require_right(case, inputs)


def _sliced(tensor: Tensor) -> Tensor:
    """Every second number of a wider tensor."""
    return torch.stack((tensor, tensor + 1), dim=-1)[..., 0]


def _offset(tensor: Tensor) -> Tensor:
    """A view that starts off any alignment."""
    flat = torch.cat((tensor.new_zeros(1), tensor.flatten()))
    return flat[1:].view(tensor.shape)


def _channels_first(tensor: Tensor) -> Tensor:
    return tensor.transpose(2, 3).contiguous().transpose(2, 3)


def _expanded(tensor: Tensor) -> Tensor:
    """One batch entry that stands for all."""
    return tensor[:1].expand(tensor.shape)
