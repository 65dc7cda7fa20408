"""Checks of how an implementation behaves: state, seeds, reasons, and tensors that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from harness.attention import Case
from harness.conformance import cells
from harness.conformance.subject import (
    Axes,
    CheckFailure,
    Subject,
    attention_inputs,
    of_attention,
)
from harness.errors import InvalidValueError
from harness.inputs.sets import make_inputs
from harness.measuring.modes import output_name
from harness.numerics.judgement import make_reference
from harness.tensors import AttentionInputs, Inputs, MaskTensors


def check_keeps_nothing(subject: Subject) -> None:
    """A call depends on its own inputs alone, changes none of them, and its result stays."""
    for mask in ("none", "causal", "padding:0.4"):
        for case in subject.supported([{**cells.MEDIUM, "mask": mask}]):
            sets = [make_inputs(case, index) for index in range(2)]
            copies = [{n: t.clone() for n, t in i.leaves.items()} for i in sets]
            references = [make_reference(case, inputs) for inputs in sets]
            calls = [subject.implementation.prepare(case, inputs) for inputs in sets]
            name = output_name(case)
            with torch.no_grad():
                results = [calls[index]() for index in (0, 1, 0, 1)]
            for position, result in enumerate(results):
                subject.require_as_exact(case, references[position % 2], {name: result})
            _require_unchanged(case, sets, copies)


def _require_unchanged(
    case: Case, sets: Sequence[Inputs], copies: Sequence[dict[str, Tensor]]
) -> None:
    for inputs, before in zip(sets, copies, strict=True):
        for name, tensor in inputs.leaves.items():
            if not torch.equal(tensor, before[name]):
                raise CheckFailure(case, f"the call changed its input {name}")


def check_same_twice(subject: Subject) -> None:
    """The same inputs give the same result, bit for bit, on the CPU."""
    if subject.device != "cpu":
        return
    for case in subject.supported([cells.MEDIUM, {**cells.MEDIUM, "mask": "causal"}]):
        inputs = make_inputs(case)
        first, second = (subject.output(case, inputs) for _ in range(2))
        if not torch.equal(first, second):
            difference = float((first - second).abs().max())
            raise CheckFailure(case, f"two equal calls differ by {difference:.3g}")


def check_dropout(subject: Subject) -> None:
    """Dropout follows the seed in training, and drops and rescales rather than nothing."""
    axes = {**cells.MEDIUM, "dropout_p": 0.5, "mode": "forward_train"}
    for case in subject.supported([axes]):
        inputs = make_inputs(case)
        results = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            results.append(subject.output(case, inputs))
        if not torch.equal(results[0], results[1]):
            raise CheckFailure(case, "the same seed gave two results")
        if torch.equal(results[0], results[2]):
            raise CheckFailure(case, "another seed gave the same result: nothing was dropped")


def check_reasons(subject: Subject) -> None:
    """A case that cannot be done has reasons with value and limit, asked without tensors."""
    odd: list[Axes] = [
        {"hidden_size": 2048, "num_heads": 1},
        {"num_kv_heads": 1},
        {"scale": 0.3},
        {"kv_seq_len": 0},
        {"batch_size": 70000},
        {"mode": "forward_backward"},
        {"scope": "layer"},
        {"dropout_p": 0.1, "mode": "forward_train"},
        {"mask": "causal+window:3+padding:0.5+keep:random+bias:alibi"},
    ]
    for axes in odd:
        case = subject.case(**axes)
        subject.tally.cases += 1
        reasons = subject.implementation.unsupported_reasons(case)
        if not isinstance(reasons, tuple):
            raise CheckFailure(case, f"reasons are {type(reasons).__name__}, not a tuple")
        for reason in reasons:
            if not isinstance(reason, str) or not reason.strip():
                raise CheckFailure(case, f"{reason!r} is no reason in words")


def check_bad_tensors_are_refused(subject: Subject) -> None:
    """Tensors that do not fit the case are refused before any kernel sees them."""
    plain = subject.case(**of_attention({"seq_len": 4, "kv_seq_len": 6}))
    masked = subject.case(**of_attention({"seq_len": 4, "kv_seq_len": 6, "mask": "keep:random"}))
    biased = subject.case(**of_attention({"seq_len": 4, "kv_seq_len": 6, "mask": "bias:random"}))
    good, other = attention_inputs(plain), torch.int64
    bad = (
        ("a shorter v", plain, replace(good, v=good.v[:, :, :-1])),
        ("a longer k", plain, replace(good, k=torch.cat((good.k, good.k), dim=2))),
        ("another head_dim", plain, replace(good, q=good.q[..., :-1])),
        ("lengths before heads", plain, replace(good, q=good.q.transpose(1, 2)[:, :3])),
        ("q of another dtype", plain, replace(good, q=good.q.to(other))),
        ("a mask of integers", masked, _masked(good, keep=torch.ones(4, 6, dtype=other))),
        ("a mask with three axes", masked, _masked(good, keep=torch.ones(1, 4, 6) > 0)),
        ("a bias of another dtype", biased, _masked(good, bias=torch.full((4, 6), 2, dtype=other))),
        ("an undeclared bias of 0 and 1", biased, _masked(good, bias=good.q.new_ones(4, 6).tril())),
    )
    for what, case, inputs in bad:
        reasons = subject.implementation.unsupported_reasons(case)
        if reasons:
            subject.tally.reasons += reasons
            continue
        subject.tally.cases += 1
        try:
            subject.implementation.prepare(case, inputs)()
        except InvalidValueError:
            continue
        except Exception as error:
            text = f"{what} raised {type(error).__name__} ({error}), not InvalidValueError"
            raise CheckFailure(case, text) from error
        raise CheckFailure(case, f"{what} was accepted")


def _masked(
    inputs: AttentionInputs, keep: Tensor | None = None, bias: Tensor | None = None
) -> AttentionInputs:
    device = inputs.q.device
    keep, bias = (None if t is None else t.to(device) for t in (keep, bias))
    return replace(inputs, masks=MaskTensors(keep=keep, bias=bias))
