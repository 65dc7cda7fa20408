"""Checks that the properties of any attention hold, on cases that cross tiles and masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.conformance.cells import GROUPS, SMALL, UNEQUAL
from harness.conformance.properties import (
    Property,
    causality,
    convex_hull,
    grouped_heads_are_shared,
    independence,
    key_offset,
    key_permutation,
    linearity_in_values,
    one_key_attended,
    repeated_keys,
    split_of_keys,
    split_of_queries,
)
from harness.conformance.subject import Axes, Subject, of_attention


def _unmasked() -> Iterator[Axes]:
    for seq_len, kv_seq_len in ((1, 2), (3, 7), (8, 33), (70, 129), (17, 600)):
        yield {**SMALL, "batch_size": 2, "seq_len": seq_len, "kv_seq_len": kv_seq_len}
    yield {**SMALL, "seq_len": 40, "inputs": "logits_x8"}


def _masked() -> Iterator[Axes]:
    for mask in ("none", "bottom_right", "padding:0.5", "keep:random+bias:random", "document"):
        yield {**UNEQUAL, "mask": mask}
        yield {**UNEQUAL, "seq_len": 40, "kv_seq_len": 129, "mask": mask}


def _causal() -> Iterator[Axes]:
    for seq_len, kv_seq_len in ((4, 4), (5, 9), (9, 5), (130, 130), (40, 140)):
        for mask in ("top_left", "bottom_right"):
            yield {**SMALL, "seq_len": seq_len, "kv_seq_len": kv_seq_len, "mask": mask}


def _hold(subject: Subject, cells: Iterable[Axes], *properties: Property) -> None:
    for case in subject.supported(of_attention(axes) for axes in cells):
        for holds in properties:
            holds(subject, case)


def check_keys_have_no_order(subject: Subject) -> None:
    """Keys have no order, and an offset common to all of them does not matter."""
    _hold(subject, _unmasked(), key_permutation, key_offset, repeated_keys)


def check_values_are_averaged(subject: Subject) -> None:
    """The output is linear in the values, within their range, and one key's value is itself."""
    _hold(subject, _unmasked(), one_key_attended)
    _hold(subject, _masked(), linearity_in_values, convex_hull)


def check_split_invariance(subject: Subject) -> None:
    """Splitting queries or keys and joining the parts gives the whole."""
    _hold(subject, _unmasked(), split_of_queries, split_of_keys)


def check_independence(subject: Subject) -> None:
    """Batch entries and heads are independent."""
    _hold(subject, _masked(), independence)


def check_causality(subject: Subject) -> None:
    """The future changes nothing."""
    _hold(subject, _causal(), causality)


def check_shared_heads(subject: Subject) -> None:
    """Grouped heads equal the same heads written out."""
    cells = (
        {"num_heads": h, "num_kv_heads": g, "hidden_size": 8 * h, "seq_len": 9} for h, g in GROUPS
    )
    _hold(subject, cells, grouped_heads_are_shared)
