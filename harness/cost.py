"""What a case costs by arithmetic: unmasked pairs, FLOPs, bytes, and the roofline. No torch.

Everything is counted on the *problem*, never per implementation: one that skips work cleverly shows
a higher rate, one that computes masked pairs a lower one.

Letters: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len,
E hidden_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from harness.attention import AttentionConfig, Bias, Case, Keep, Mode, Scope
from harness.documents import document_lengths

KEEP_PROBABILITY = 0.8  # share of the pairs that keep:random keeps; the masks are drawn with it

# Forward's two products have four backward: dV, dP, dQ, dK.
_PASSES = {
    Mode.FORWARD: 1,
    Mode.FORWARD_TRAIN: 1,
    Mode.BACKWARD: 2,
    Mode.FORWARD_BACKWARD: 3,
}


def unmasked_pairs(config: AttentionConfig) -> int:
    """Number of (query, key) pairs that attend, over the whole batch and all heads.

    Exact for causal triangles, windows, padding and documents; with ``keep:random`` the rounded
    expectation, 0.8 of what the other parts leave. A bias excludes nothing.
    """
    pairs = sum(_pairs_of_head(config, length) for length in config.key_lengths())
    expected = KEEP_PROBABILITY if config.mask.keep is Keep.RANDOM else 1
    return round(pairs * expected) * config.num_heads


@lru_cache(maxsize=4096)
def _pairs_of_head(config: AttentionConfig, key_length: int) -> int:
    """Pairs of one head in a batch entry that keeps the first ``key_length`` keys."""
    if not config.mask.features & {"causal", "top_left", "bottom_right", "window", "keep"}:
        return config.seq_len * key_length
    import numpy as np  # here, so that a plan without masks needs no numpy

    position = np.arange(config.seq_len, dtype=np.int64) + config.causal_offset
    first = np.zeros_like(position)
    end = np.full_like(position, key_length)
    if config.is_causal:
        end = np.minimum(end, position + 1)
    if config.mask.window is not None:
        first = np.maximum(first, position - config.mask.window + 1)
        end = np.minimum(end, position + config.mask.window)
    if config.mask.keep is Keep.DOCUMENT and config.kv_seq_len:
        ends = np.cumsum(document_lengths(config.kv_seq_len))
        document = np.searchsorted(ends, position.clip(0, config.kv_seq_len - 1), side="right")
        first = np.maximum(first, np.concatenate(([0], ends))[document])
        end = np.minimum(end, ends[document])
    return int(np.maximum(end - first, 0).sum())


def flop_count(case: Case) -> int:
    """Floating-point operations of one call: products only, on unmasked pairs.

    Attention does 2 * (D + D) per pair forward (scores, and weighted values) and twice that
    backward; the layer adds its projections, whose backward also is twice their forward.
    """
    forward = 4 * unmasked_pairs(case.config) * case.config.head_dim
    if case.scope is Scope.LAYER:
        forward += projection_flop_count(case.config)
    return forward * _PASSES[case.mode]


def projection_flop_count(config: AttentionConfig) -> int:
    """Forward FLOPs of the layer's four projections."""
    c = config
    queries = c.batch_size * c.seq_len * c.num_heads  # W_Q, and W_O
    keys = c.batch_size * c.kv_seq_len * c.num_kv_heads  # W_K, and W_V
    return 2 * 2 * c.hidden_size * c.head_dim * (queries + keys)


def mask_bytes(config: AttentionConfig) -> int:
    """Bytes of the mask's tensors; causal triangle and window have none."""
    c = config
    total = 0
    if c.mask.key_padding:
        total += c.batch_size * c.kv_seq_len
    if c.mask.keep is Keep.DOCUMENT:
        total += c.seq_len * c.kv_seq_len
    elif c.mask.keep is Keep.RANDOM:
        total += c.batch_size * c.seq_len * c.kv_seq_len
    if c.mask.bias in (Bias.RANDOM, Bias.ALIBI):
        total += c.num_heads * c.seq_len * c.kv_seq_len * c.dtype.itemsize_bytes
    return total


def _leaf_elements(case: Case) -> int:
    """Elements of what gradients are taken of: q, k and v, or x, x_kv and the weights."""
    c = case.config
    if case.scope is Scope.ATTENTION:
        queries = c.num_heads * c.seq_len
        return c.batch_size * c.head_dim * (queries + 2 * c.num_kv_heads * c.kv_seq_len)
    weights = c.hidden_size * c.head_dim * 2 * (c.num_heads + c.num_kv_heads)
    lengths = c.seq_len if c.seq_len == c.kv_seq_len else c.seq_len + c.kv_seq_len
    return weights + c.batch_size * c.hidden_size * lengths


def output_bytes(case: Case) -> int:
    """Bytes of ``o`` or ``y``."""
    c = case.config
    width = c.hidden_size if case.scope is Scope.LAYER else c.num_heads * c.head_dim
    return c.batch_size * c.seq_len * width * c.dtype.itemsize_bytes


def gradient_bytes(case: Case) -> int:
    """Bytes of all gradients that one call returns; 0 where the mode takes none."""
    leaves = _leaf_elements(case) * case.config.dtype.itemsize_bytes
    return leaves if case.mode.has_gradients else 0


def input_bytes(case: Case) -> int:
    """Bytes of one set of inputs: operands, masks, and the output's gradient where there is one."""
    operands = _leaf_elements(case) * case.config.dtype.itemsize_bytes + mask_bytes(case.config)
    return operands + (output_bytes(case) if case.mode.has_gradients else 0)


def min_bytes(case: Case) -> int:
    """Bytes that any implementation must move: every input read and every result written once."""
    produces_output = case.mode is not Mode.BACKWARD
    return input_bytes(case) + produces_output * output_bytes(case) + gradient_bytes(case)


def score_bytes(case: Case) -> int:
    """Bytes of one score matrix ``[B, H, L, S]`` in the inputs' dtype."""
    c = case.config
    return c.batch_size * c.num_heads * c.seq_len * c.kv_seq_len * c.dtype.itemsize_bytes


def needed_bytes(case: Case, input_sets: int = 4) -> int:
    """Bytes that measuring the case takes whatever the implementation: inputs, results, oracle.

    The workspace of an implementation is not among them: one that runs out of memory is a row. The
    oracle keeps a float64 value and three float32 magnitudes per element that it certifies.
    """
    results = output_bytes(case) + gradient_bytes(case)
    certified = 20 * results // case.config.dtype.itemsize_bytes
    return input_sets * input_bytes(case) + results + certified


@dataclass(frozen=True)
class Roofline:
    """The least time that a machine with two ceilings needs.

    Args:
        time_s: The larger of both ceilings' times.
        binds: Which ceiling that is, ``compute`` or ``memory``.
        intensity: FLOPs per byte that must move.
    """

    time_s: float
    binds: str
    intensity: float


def roofline(case: Case, flop_per_s: float, bytes_per_s: float) -> Roofline:
    """Least time of one call by the machine's measured rate of products and memory bandwidth."""
    flops, moved = flop_count(case), min_bytes(case)
    compute_s, memory_s = flops / flop_per_s, moved / bytes_per_s
    binds = "compute" if compute_s >= memory_s else "memory"
    return Roofline(max(compute_s, memory_s), binds, flops / moved if moved else 0.0)
