"""Properties that hold for any attention, each a function of a subject and any case.

``invariances`` runs them on cases of its own; a test may drive the same functions by hypothesis.
Both sides of a property are computed by the implementation, and may differ by what rounding allows.

Shapes: B batch_size, H num_heads, G num_kv_heads, L seq_len, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from harness.attention import Case
from harness.conformance.subject import Subject, attention_inputs
from harness.numerics.problem import attention_problem
from harness.numerics.reference import exact_attention
from harness.tensors import AttentionInputs

Property = Callable[[Subject, Case], None]


def key_permutation(subject: Subject, case: Case) -> None:
    """Keys and their values in another order give the same output; needs a mask-free case."""
    inputs = attention_inputs(case)
    order = torch.randperm(case.config.kv_seq_len, generator=torch.Generator().manual_seed(1))
    order = order.to(inputs.k.device)
    permuted = replace(inputs, k=inputs.k[:, :, order], v=inputs.v[:, :, order])
    _require_equal(subject, case, inputs, permuted, "keys in another order change the output")


def key_offset(subject: Subject, case: Case) -> None:
    """The same vector added to all keys changes nothing: softmax sees differences only."""
    inputs = attention_inputs(case)
    # Coarse numbers: adding the offset must not round.
    coarse = replace(inputs, k=(inputs.k * 4).round() / 4)
    shifted = replace(coarse, k=coarse.k + 2.0)
    _require_equal(subject, case, coarse, shifted, "an offset on all keys changes the output")


def _require_equal(
    subject: Subject, case: Case, one: AttentionInputs, other: AttentionInputs, claim: str
) -> None:
    allowance = subject.allowance(case, one) + subject.allowance(case, other)
    got, wanted = subject.output(case, other), subject.output(case, one)
    subject.require_close(case, got, wanted, allowance, claim)


def linearity_in_values(subject: Subject, case: Case) -> None:
    """The output for v1 + v2 is the sum of the outputs for v1 and v2."""
    inputs = attention_inputs(case)
    v1 = (inputs.v * 4).round() / 4
    v2 = (attention_inputs(case, 1).v * 4).round() / 4
    parts = [replace(inputs, v=v) for v in (v1, v2, v1 + v2)]
    o1, o2, both = (subject.output(case, part).double() for part in parts)
    allowance = sum((subject.allowance(case, part) for part in parts), torch.zeros(()))
    subject.require_close(case, both, o1 + o2, allowance, "the output is not linear in the values")


def convex_hull(subject: Subject, case: Case) -> None:
    """Every output lies between the smallest and the largest value of its channel, or is 0."""
    inputs = attention_inputs(case)
    got = subject.output(case, inputs).double().cpu()
    v = inputs.v.double().cpu().repeat_interleave(case.config.group_size, dim=1)
    if not v.shape[2] or not got.numel():
        return
    low, high = v.amin(dim=2, keepdim=True), v.amax(dim=2, keepdim=True)
    if case.mode.is_training or not case.config.mask.is_none:
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)  # a row may have no keys
    nearest = torch.maximum(torch.minimum(got, high), low)
    allowance = subject.allowance(case, inputs)
    subject.require_close(case, got, nearest, allowance, "the output leaves the values' range")


def independence(subject: Subject, case: Case) -> None:
    """Batch entries and heads know nothing of each other: changing one leaves the others alone."""
    c = case.config
    if not c.batch_size or not c.kv_seq_len or not c.seq_len:
        return
    inputs = attention_inputs(case)
    before = subject.output(case, inputs)
    allowance = subject.allowance(case, inputs).to(before.device)
    for batch, kv_head in ((0, 0), (c.batch_size - 1, c.num_kv_heads - 1)):
        changed = replace(inputs, q=inputs.q.clone(), k=inputs.k.clone(), v=inputs.v.clone())
        own_heads = slice(kv_head * c.group_size, (kv_head + 1) * c.group_size)
        changed.q[batch, own_heads] *= -3.0
        changed.k[batch, kv_head] *= -2.0
        changed.v[batch, kv_head] = 7.0
        after = subject.output(case, changed)
        others = torch.ones(before.shape, dtype=torch.bool, device=before.device)
        others[batch, own_heads] = False
        claim = f"batch entry {batch}, key head {kv_head} changes another one's output"
        subject.require_close(case, after[others], before[others], allowance[others], claim)


def causality(subject: Subject, case: Case) -> None:
    """Under a causal mask nothing after a query's own position changes its output."""
    c = case.config
    inputs = attention_inputs(case)
    before = subject.output(case, inputs)
    allowance = subject.allowance(case, inputs)
    for row in sorted({0, c.seq_len // 2, c.seq_len - 2} & set(range(c.seq_len))):
        end = max(0, row + c.causal_offset + 1)
        changed = replace(inputs, k=inputs.k.clone(), v=inputs.v.clone())
        changed.k[:, :, end:] *= 50.0
        changed.v[:, :, end:] *= -50.0
        rows = slice(0, row + 1)
        after = subject.output(case, changed)[:, :, rows]
        claim = f"keys after position {end - 1} change query {row} or one before it"
        subject.require_close(case, after, before[:, :, rows], allowance[:, :, rows], claim)


def split_of_queries(subject: Subject, case: Case) -> None:
    """Queries in two parts give the output of all at once; needs a mask that knows no position."""
    c = case.config
    inputs = attention_inputs(case)
    whole = subject.output(case, inputs)
    allowance = 2 * subject.allowance(case, inputs)
    for start, stop in ((0, c.seq_len // 2), (c.seq_len // 2, c.seq_len)):
        rows = slice(start, stop)
        axes = {**case.to_dict(), "seq_len": stop - start}
        part = Case.from_dict(axes)
        if subject.implementation.unsupported_reasons(part):
            continue  # no queries at all, say
        got = subject.output(part, replace(inputs, q=inputs.q[:, :, rows]))
        claim = f"queries {start} to {stop} alone give another output"
        subject.require_close(part, got, whole[:, :, rows], allowance[:, :, rows], claim)


def split_of_keys(subject: Subject, case: Case) -> None:
    """Two parts of the keys joined by their weights give the output of all; needs no mask."""
    c = case.config
    inputs = attention_inputs(case)
    whole = subject.output(case, inputs)
    allowance = 2 * subject.allowance(case, inputs)
    outputs, sums = [], []
    for start, stop in ((0, c.kv_seq_len // 3), (c.kv_seq_len // 3, c.kv_seq_len)):
        keys = slice(start, stop)
        part = Case.from_dict({**case.to_dict(), "kv_seq_len": stop - start})
        of_part = replace(inputs, k=inputs.k[:, :, keys], v=inputs.v[:, :, keys])
        outputs.append(subject.output(part, of_part).double().cpu())
        sums.append(exact_attention(attention_problem(part.config, of_part)).lse)
        allowance = allowance + subject.allowance(part, of_part)
    weights = torch.stack(sums).softmax(dim=0)[..., None].nan_to_num()
    joined = weights[0] * outputs[0] + weights[1] * outputs[1]
    claim = "two parts of the keys joined by their weights are not the whole"
    subject.require_close(case, whole, joined, allowance, claim)


def repeated_keys(subject: Subject, case: Case) -> None:
    """Every key twice changes nothing; needs no mask."""
    inputs = attention_inputs(case)
    doubled = Case.from_dict({**case.to_dict(), "kv_seq_len": 2 * case.config.kv_seq_len})
    twice = replace(
        inputs, k=torch.cat((inputs.k,) * 2, dim=2), v=torch.cat((inputs.v,) * 2, dim=2)
    )
    allowance = subject.allowance(case, inputs) + subject.allowance(doubled, twice)
    got, wanted = subject.output(doubled, twice), subject.output(case, inputs)
    subject.require_close(doubled, got, wanted, allowance, "every key twice changes the output")


def one_key_attended(subject: Subject, case: Case) -> None:
    """With only one key the output is that key's value, exactly as stored; needs no mask."""
    inputs = attention_inputs(case)
    one = Case.from_dict({**case.to_dict(), "kv_seq_len": 1})
    single = replace(inputs, k=inputs.k[:, :, :1], v=inputs.v[:, :, :1])
    value = single.v.repeat_interleave(case.config.group_size, dim=1)
    wanted = value.expand(-1, -1, case.config.seq_len, -1)
    got = subject.output(one, single)
    subject.require_close(one, got, wanted, subject.allowance(one, single), "one key's output")


def grouped_heads_are_shared(subject: Subject, case: Case) -> None:
    """Grouped heads give what the same keys and values written out per query head give."""
    inputs = attention_inputs(case)
    c = case.config
    written_out = Case.from_dict({**case.to_dict(), "num_kv_heads": c.num_heads})
    if subject.implementation.unsupported_reasons(written_out):
        return
    repeated = [t.repeat_interleave(c.group_size, dim=1) for t in (inputs.k, inputs.v)]
    plain = replace(inputs, k=repeated[0], v=repeated[1])
    got, wanted = subject.output(case, inputs), subject.output(written_out, plain)
    allowance = 2 * subject.allowance(case, inputs)
    claim = "query head i does not use key/value head i // group"
    subject.require_close(case, got, wanted, allowance, claim)
