"""The cases that the battery goes through, small ones first, so that the first failure is readable.

Sizes within a cell differ wherever they can: a swap of two axes must not go unseen.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.conformance.subject import Axes
from harness.distributions import DISTRIBUTIONS

UNEQUAL: Axes = {
    "batch_size": 2,
    "num_heads": 3,
    "hidden_size": 24,
    "seq_len": 5,
    "kv_seq_len": 11,
}
SMALL: Axes = {"hidden_size": 16, "num_heads": 2}
MEDIUM: Axes = {"hidden_size": 64, "num_heads": 2, "seq_len": 97}
# Many elements: averages over them show errors that no single element does.
LARGE: Axes = {"hidden_size": 128, "num_heads": 2, "seq_len": 385}
# Many keys: an accumulator of low precision loses the last of them.
MANY_KEYS: Axes = {"hidden_size": 32, "num_heads": 1, "seq_len": 9, "kv_seq_len": 8200}

JUDGED_DISTRIBUTIONS = tuple(name for name in DISTRIBUTIONS if name != "nonfinite")

_EDGES = (1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 128, 129, 193, 255, 257, 511, 513, 1025)
_UNEQUAL_LENGTHS = ((1, 64), (1, 65), (64, 1), (100, 77), (130, 31), (3, 257), (1031, 6), (7, 1033))
HEAD_DIMS = (1, 3, 8, 20, 32, 63, 64, 80, 96, 100, 128, 160, 200, 256, 300, 512)
GROUPS = ((2, 1), (4, 1), (4, 2), (6, 2), (6, 3), (8, 2))

_POSITION_MASKS = (
    "top_left",
    "bottom_right",
    "top_left+window:1",
    "bottom_right+window:3",
    "top_left+window:16",
)
OTHER_MASKS = (
    "padding:0.25",
    "padding:0.9",
    "keep:random",
    "bias:random",
    "bias:alibi",
    "document",
    "padding:0.5+keep:random",
    "keep:random+bias:random",
)
_JOINED = (
    "bottom_right+padding:0.5",
    "top_left+document",
    "top_left+keep:random",
    "bottom_right+bias:alibi",
    "bottom_right+window:6+padding:0.3+keep:random+bias:random",
)
_MASKED_LENGTHS = ((5, 5), (3, 8), (9, 4), (33, 33), (20, 70), (70, 20))


def lengths() -> Iterator[Axes]:
    """Query and key lengths around every usual tile, and primes; plain, and causal."""
    pairs = sorted([*((n, n) for n in _EDGES), *_UNEQUAL_LENGTHS], key=lambda p: p[0] * p[1])
    for seq_len, kv_seq_len in pairs:
        for mask in ("none", "bottom_right"):
            yield {**SMALL, "seq_len": seq_len, "kv_seq_len": kv_seq_len, "mask": mask}


def masks() -> Iterator[Axes]:
    """Every part of a mask and joined parts, on square and both oblong shapes."""
    for seq_len, kv_seq_len in _MASKED_LENGTHS:
        sizes = {**SMALL, "batch_size": 2, "seq_len": seq_len, "kv_seq_len": kv_seq_len}
        for mask in (*_POSITION_MASKS, *OTHER_MASKS, *_JOINED):
            yield {**sizes, "mask": mask}
        if seq_len == kv_seq_len:
            for mask in ("causal", "window:2", "window:9", "window:4+padding:0.4"):
                yield {**sizes, "mask": mask}


def grouped_heads() -> Iterator[Axes]:
    """Query heads that share key heads, in every order of grouping that could be confused."""
    for num_heads, num_kv_heads in GROUPS:
        for mask in ("none", "bottom_right", "keep:random"):
            yield {
                "num_heads": num_heads,
                "num_kv_heads": num_kv_heads,
                "hidden_size": 8 * num_heads,
                "seq_len": 13,
                "kv_seq_len": 19,
                "mask": mask,
            }


def distributions() -> Iterator[Axes]:
    """Every distribution at sizes where its danger shows."""
    for name in JUDGED_DISTRIBUTIONS:
        yield {**MEDIUM, "inputs": name}
        yield {**MEDIUM, "inputs": name, "mask": "causal"}
    for name in ("zero_queries", "gaussian"):
        yield {**MANY_KEYS, "inputs": name}
    for name in ("gaussian", "outlier_channel", "logits_x8"):
        yield {**LARGE, "inputs": name}


def empty_sizes() -> Iterator[Axes]:
    """No batch entry, no query, no key."""
    for sizes in ({"batch_size": 0}, {"seq_len": 0, "kv_seq_len": 7}, {"kv_seq_len": 0}):
        for mask in ("none", "bottom_right", "padding:0.5", "keep:random", "bias:random"):
            yield {**SMALL, "seq_len": 5, **sizes, "mask": mask}


def rows_without_keys() -> Iterator[Axes]:
    """Masks that leave some queries without any key."""
    yield {**SMALL, "seq_len": 6, "kv_seq_len": 4, "mask": "bottom_right"}
    yield {**SMALL, "seq_len": 70, "kv_seq_len": 5, "mask": "bottom_right"}
    yield {**SMALL, "seq_len": 8, "mask": "causal+window:2+padding:0.6"}
    for seed in range(3):
        yield {**SMALL, "seq_len": 40, "kv_seq_len": 2, "mask": "keep:random", "seed": seed}
        yield {
            **SMALL,
            "seq_len": 40,
            "kv_seq_len": 2,
            "mask": "keep:random+bias:random",
            "seed": seed,
        }


def log_sum_exps() -> Iterator[Axes]:
    """Tails, masks with and without empty rows, groups, scales, and every distribution."""
    yield from (UNEQUAL, {**SMALL, "seq_len": 1}, {**SMALL, "seq_len": 65, "kv_seq_len": 130})
    for seq_len, kv_seq_len in ((5, 5), (9, 4), (33, 70)):
        for mask in ("top_left", "bottom_right", "padding:0.5", "keep:random+bias:random"):
            yield {**SMALL, "seq_len": seq_len, "kv_seq_len": kv_seq_len, "mask": mask}
    yield from rows_without_keys()
    yield {**SMALL, "seq_len": 5, "kv_seq_len": 0}
    yield {**SMALL, "seq_len": 33, "scale": 1.0}
    yield {"num_heads": 6, "num_kv_heads": 2, "hidden_size": 48, "seq_len": 13}
    for name in JUDGED_DISTRIBUTIONS:
        yield {**MEDIUM, "inputs": name}
        yield {**MEDIUM, "inputs": name, "mask": "causal"}
    yield MANY_KEYS


def gradients() -> Iterator[Axes]:
    """Where backward passes go wrong: tails, masks, groups, peaked and constant inputs."""
    yield from (UNEQUAL, {**SMALL, "seq_len": 65}, MEDIUM)
    for seq_len, kv_seq_len in ((5, 5), (6, 11), (33, 20)):
        for mask in ("top_left", "bottom_right", "padding:0.5", "keep:random+bias:random"):
            yield {**SMALL, "seq_len": seq_len, "kv_seq_len": kv_seq_len, "mask": mask}
    for num_heads, num_kv_heads in GROUPS[1:4]:
        sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "seq_len": 13}
        yield {**sizes, "hidden_size": 8 * num_heads, "mask": "causal"}
    for name in JUDGED_DISTRIBUTIONS:
        yield {**MEDIUM, "seq_len": 65, "mask": "causal", "inputs": name}
    yield {**LARGE, "seq_len": 257}


def layers() -> Iterator[Axes]:
    """Self- and cross-attention, grouped heads, masks; narrow and wide heads."""
    for sizes in (
        {"hidden_size": 24, "num_heads": 3, "seq_len": 7},
        {"hidden_size": 24, "num_heads": 3, "seq_len": 5, "kv_seq_len": 9, "batch_size": 2},
        {"hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "seq_len": 9},
        {"hidden_size": 24, "num_heads": 2, "head_dim": 20, "seq_len": 6},
        {"hidden_size": 128, "num_heads": 4, "seq_len": 65},
    ):
        for mask in ("none", "bottom_right", "padding:0.4", "keep:random"):
            yield {**sizes, "mask": mask}
    yield {"hidden_size": 128, "num_heads": 4, "seq_len": 65, "inputs": "outlier_channel"}
