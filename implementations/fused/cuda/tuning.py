"""The fastest tiles for a case, found by trying them on random tensors of its shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from harness.interface import AttentionConfig, MaskTensors, torch_dtype
from implementations.fused.cuda.arguments import Known
from implementations.fused.cuda.plan import Plan
from implementations.fused.cuda.tiles import (
    Tiles,
    TileSet,
    forward_tiles,
    key_gradient_tiles,
    query_gradient_tiles,
)

Timer = Callable[[Callable[[], object]], float]
LEAST_SCORES = 2**22  # of a problem; smaller ones take less time than trying saves


@cache
def tuned_tiles(plan: Plan, has_gradients: bool, with_descriptors: bool) -> TileSet:
    """The fastest tiles of each kernel on this card; of the backward kernels only where asked.

    Args:
        plan: Without the tensors of its mask, so that equal problems are equal plans.
        with_descriptors: Whether loads by tensor descriptors are tried too.
    """
    masked = replace(plan, masks=stand_in_masks(plan.config))
    return try_tiles(masked, has_gradients, device_time_s, with_descriptors)


def is_worth_trying(c: AttentionConfig) -> bool:
    """Whether a problem is large enough for the choice of tiles to matter."""
    return c.batch_size * c.num_heads * c.seq_len * c.kv_seq_len >= LEAST_SCORES


def first_tiles(c: AttentionConfig) -> TileSet:
    """What runs where nothing is tried."""
    return TileSet(forward_tiles(c)[0], key_gradient_tiles(c)[0], query_gradient_tiles(c)[0])


def stand_in_masks(c: AttentionConfig, device: str = "cuda") -> MaskTensors:
    """Tensors for the parts of the mask that need them, under which every pair attends."""
    pairs = torch.ones(c.seq_len, c.kv_seq_len, device=device)
    padding = torch.ones(c.batch_size, c.kv_seq_len, dtype=torch.bool, device=device)
    return MaskTensors(
        padding if c.mask.key_padding else None,
        pairs.bool() if c.mask.keep is not None else None,
        pairs.to(torch_dtype(c.dtype)) if c.mask.bias is not None else None,
    )


def try_tiles(
    plan: Plan,
    has_gradients: bool,
    time_s: Timer,
    with_descriptors: bool = False,
    device: str = "cuda",
) -> TileSet:
    """The fastest tiles of each kernel for the plan's problem, by a timer."""
    c, tiles = plan.config, plan.tiles
    q, k, v = _stand_in_inputs(c, device)
    choose = partial(fastest_loads if with_descriptors else fastest, time_s=time_s)

    def forward(candidate: Tiles) -> object:
        return plan.with_tiles(replace(tiles, forward=candidate)).forward(q, k, v)

    tiles = replace(tiles, forward=choose(forward_tiles(c), forward))
    return _try_backward(plan.with_tiles(tiles), q, k, v, choose) if has_gradients else tiles


def _stand_in_inputs(c: AttentionConfig, device: str) -> tuple[Tensor, ...]:
    """q, k and v of random numbers."""
    queries = (c.batch_size, c.num_heads, c.seq_len, c.head_dim)
    keys = (c.batch_size, c.num_kv_heads, c.kv_seq_len, c.head_dim)
    own = torch.Generator(device).manual_seed(0)  # leaves torch's as they were
    return tuple(
        torch.randn(shape, dtype=torch_dtype(c.dtype), device=device, generator=own)
        for shape in (queries, keys, keys)
    )


def _try_backward(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, choose: Callable[..., Tiles]
) -> TileSet:
    c, tiles = plan.config, plan.tiles
    output, statistics = plan.forward(q, k, v)
    known = Known(q, k, v, output, statistics, plan.delta(output, output))
    d_q, d_k, d_v = (torch.empty_like(x) for x in (q, k, v))

    def key_gradients(candidate: Tiles) -> None:
        plan.with_tiles(replace(tiles, key_gradients=candidate)).key_gradients(known, d_k, d_v)

    def query_gradients(candidate: Tiles) -> None:
        plan.with_tiles(replace(tiles, query_gradients=candidate)).query_gradients(known, d_q)

    return TileSet(
        tiles.forward,
        choose(key_gradient_tiles(c), key_gradients),
        choose(query_gradient_tiles(c), query_gradients),
    )


def fastest_loads(
    candidates: Iterable[Tiles], call: Callable[[Tiles], object], time_s: Timer
) -> Tiles:
    """The fastest candidate with loads by descriptors, or the same by pointers if that is faster.

    Raises:
        RuntimeError: none fits.
    """
    best = fastest([tiles.loading(by_descriptors=True) for tiles in candidates], call, time_s)
    return fastest([best, best.loading(by_descriptors=False)], call, time_s)


def fastest(candidates: Iterable[Tiles], call: Callable[[Tiles], object], time_s: Timer) -> Tiles:
    """The candidate whose call takes the least time; those that do not fit the card are left out.

    Raises:
        RuntimeError: none fits.
    """
    from triton.runtime.errors import OutOfResources

    best, least_s, refusals = None, math.inf, []
    for tiles in candidates:
        try:
            taken_s = time_s(partial(call, tiles))
        except OutOfResources as refusal:
            refusals.append(f"{tiles}: {refusal}")
            continue
        if best is None or taken_s < least_s:
            best, least_s = tiles, taken_s
    if best is None:
        raise RuntimeError(f"no tiles fit this card: {'; '.join(refusals)}")
    return best


def device_time_s(call: Callable[[], object]) -> float:
    """Median seconds of a call on the card, the compilation not counted."""
    from triton.testing import do_bench

    return 1e-3 * float(do_bench(call, warmup=10, rep=50, return_mode="median"))
