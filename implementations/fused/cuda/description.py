"""What a plan runs on given inputs, in words for a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from harness.interface import AttentionConfig, AttentionInputs, Inputs, torch_dtype
from implementations.fused.cuda.descriptors import refusal
from implementations.fused.cuda.plan import Plan
from implementations.fused.cuda.tiles import Tiles

_HEADS = "heads of a layer"  # its q, k, v and their gradients, which no caller sees


def refused_descriptors(c: AttentionConfig, inputs: Inputs | None) -> dict[str, str]:
    """Why tensors can have no descriptor, by their names; those of a layer have one name.

    Args:
        inputs: None: contiguous ones.
    """
    tensors = {_HEADS: torch.empty(2, 2, 2, c.head_dim, dtype=torch_dtype(c.dtype), device="meta")}
    if isinstance(inputs, AttentionInputs):
        tensors = inputs.leaves
    return {name: why for name, x in tensors.items() if (why := refusal(x))}


def described(plan: Plan, inputs: Inputs | None, has_gradients: bool) -> str:
    """The tiles of each kernel, how they are loaded, and how heads and keys are divided."""
    return ", ".join(_parts(plan, refused_descriptors(plan.config, inputs), has_gradients))


def _parts(plan: Plan, refused: Mapping[str, str], has_gradients: bool) -> Iterator[str]:
    tiles = plan.tiles
    used: dict[str, tuple[Tiles, tuple[str, ...]]] = {"forward": (tiles.forward, ("k", "v"))}
    if has_gradients:
        used["dkv"] = tiles.key_gradients, ("q",)
        used["dq"] = tiles.query_gradients, ("k", "v")
    ran = {name: _ran(asked, walked, refused) for name, (asked, walked) in used.items()}
    yield f"forward {ran['forward']}"
    if plan.pack > 1:
        yield f"{plan.pack} heads in a tile"
    if plan.parts > 1:
        yield f"keys in {plan.parts} parts"
    yield from (f"{name} {each}" for name, each in ran.items() if name != "forward")
    if plan.precision == "bf16x3":
        yield "bf16x3"
    if any(each.by_descriptors for each in ran.values()):
        yield "d: loads by tensor descriptors"
    if refused and any(asked.by_descriptors for asked, _ in used.values()):
        yield f"no tensor descriptors of {', '.join(refused)}: {next(iter(refused.values()))}"


def _ran(asked: Tiles, walked: tuple[str, ...], refused: Mapping[str, str]) -> Tiles:
    """The tiles as they ran: by pointers where a tensor that the loop walks through asks for it."""
    return asked.loading(asked.by_descriptors and not refused.keys() & {*walked, _HEADS})
