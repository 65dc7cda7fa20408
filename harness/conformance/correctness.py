"""Checks that results are right over shapes, masks and distributions, all judged by the oracle."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from harness.attention import Case, DType
from harness.conformance import cells
from harness.conformance.subject import (
    Axes,
    CheckFailure,
    Subject,
    attention_inputs,
    of_attention,
)
from harness.numerics.judgement import make_reference


def check_sizes_that_all_differ(subject: Subject) -> None:
    """Batch, heads, lengths and head_dim are not confused."""
    for case in subject.supported([cells.UNEQUAL, {**cells.UNEQUAL, "kv_seq_len": 5}]):
        subject.require_right(case)


def check_lengths(subject: Subject) -> None:
    """Every length is right: around tiles of any size, and primes."""
    for case in subject.supported(cells.lengths()):
        subject.require_right(case)


def check_head_dims(subject: Subject) -> None:
    """Every head_dim is right or refused, at and around the declared limit too."""
    limit = getattr(subject.implementation, "max_head_dim", None)
    near_limit = () if limit is None else (limit - 1, limit, limit + 1)
    for head_dim in sorted({*cells.HEAD_DIMS, *near_limit} - {0}):
        axes: Axes = {"num_heads": 2, "hidden_size": 2 * head_dim, "seq_len": 19}
        for case in subject.supported([axes, {**axes, "mask": "causal"}]):
            subject.require_right(case)


def check_masks(subject: Subject) -> None:
    """Every mask means what it says: alignment, window, padding, documents, and their AND."""
    for case in subject.supported(cells.masks()):
        subject.require_right(case)


def check_grouped_heads(subject: Subject) -> None:
    """Query head i uses key/value head i // (num_heads / num_kv_heads)."""
    for case in subject.supported(cells.grouped_heads()):
        subject.require_right(case)


def check_scale(subject: Subject) -> None:
    """The scale is the one that was asked for, once, before the bias."""
    for scale in (None, 0.0, 0.05, 1.0):
        for mask in ("none", "bias:random"):
            axes: Axes = {**cells.SMALL, "seq_len": 33, "mask": mask}
            with_scale = axes if scale is None else {**axes, "scale": scale}
            for case in subject.supported([with_scale]):
                subject.require_right(case)


def check_distributions(subject: Subject) -> None:
    """Outputs are as exact as the dtype allows on every distribution of inputs."""
    for case in subject.supported(cells.distributions()):
        subject.require_right(case)


def check_log_sum_exp(subject: Subject) -> None:
    """A log-sum-exp is as exact as the output beside it, and -inf for a query without any key."""
    offered = able = 0
    for case in subject.supported(of_attention(axes) for axes in cells.log_sum_exps()):
        able += 1
        inputs = attention_inputs(case)
        outputs = subject.with_lse(case, inputs)
        if outputs:
            subject.require_as_exact(case, make_reference(case, inputs), outputs)
            offered += 1
    if able and not offered:
        subject.tally.reasons.insert(0, "offers no log-sum-exp (make_attend_with_lse)")
    subject.tally.cases = offered


def check_empty_sizes(subject: Subject) -> None:
    """Empty batches and lengths give empty outputs, and no keys give zeros."""
    for case in subject.supported(cells.empty_sizes()):
        subject.require_right(case)


def check_gradients(subject: Subject) -> None:
    """Gradients of q, k and v are as exact as the dtype allows."""
    for axes in cells.gradients():
        for case in subject.supported([{**axes, "mode": "backward"}]):
            subject.require_right(case)


def check_gradients_by_differences(subject: Subject) -> None:
    """Gradients equal finite differences in float64."""
    if subject.dtype is not DType.FLOAT32:
        subject.tally.reasons.append("in float64, and done with float32")
        return
    for mask in ("none", "causal", "keep:random+bias:random", "padding:0.5"):
        axes = {"hidden_size": 6, "num_heads": 2, "seq_len": 4, "mask": mask, "mode": "backward"}
        float64 = replace(subject, dtype=DType.FLOAT64)
        for case in float64.supported([of_attention(axes)]):
            _compare_with_differences(float64, case)


def _compare_with_differences(subject: Subject, case: Case) -> None:
    inputs = attention_inputs(case)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return subject.implementation.prepare(case, replace(inputs, q=q, k=k, v=v))()

    leaves = [t.detach().requires_grad_() for t in (inputs.q, inputs.k, inputs.v)]
    try:
        torch.autograd.gradcheck(forward, leaves)
    except GradcheckError as error:
        raise CheckFailure(case, f"gradcheck: {str(error).splitlines()[0]}") from error


def check_modes_agree(subject: Subject) -> None:
    """Every training mode gives the same right output."""
    for mode in ("forward", "forward_train", "forward_backward"):
        for case in subject.supported([{**cells.MEDIUM, "mask": "causal", "mode": mode}]):
            subject.require_right(case)


def check_layers(subject: Subject) -> None:
    """A layer projects, attends in every head, concatenates and projects out."""
    for axes in cells.layers():
        for case in subject.supported([{**axes, "scope": "layer"}]):
            subject.require_right(case)


def check_layer_gradients(subject: Subject) -> None:
    """Gradients of x and of all weights of a layer are as exact as the dtype allows."""
    for axes in cells.layers():
        for case in subject.supported([{**axes, "scope": "layer", "mode": "backward"}]):
            subject.require_right(case)
