"""``fused`` on CUDA: what it can do, and the function that is timed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec

import torch
from torch import Tensor

from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttendWithLse,
    AttentionConfig,
    AttentionImplementation,
    Case,
    Contract,
    DType,
    Inputs,
    MaskTensors,
    Scope,
    missing_device,
)
from implementations.fused.cuda.autograd import attend
from implementations.fused.cuda.description import described, refused_descriptors
from implementations.fused.cuda.descriptors import LEAST_FOR_DESCRIPTORS
from implementations.fused.cuda.operators import attend_as_operator, text_of
from implementations.fused.cuda.plan import LARGEST_GRID, Plan, forward_programs
from implementations.fused.cuda.tiles import (
    SMALLEST_TILE,
    TileSet,
    has_few_queries,
    tiles_named,
)
from implementations.fused.cuda.tuning import first_tiles, is_worth_trying, tuned_tiles

_LEAST_CAPABILITY = (8, 0)  # tensor cores with bfloat16
LEAST_KEYS_PER_PART = 256


class FusedOnCuda(AttentionImplementation):
    """Flash-style attention in Triton.

    Args:
        reduced: Whether products of float32 are made of three of bfloat16.
        tiles: Tiles of all kernels by name; ``auto`` tries some for each kernel of a large
            problem and takes the fastest.
    """

    name = "fused"
    devices = frozenset({"cuda"})
    dtypes = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
    mask_features = ALL_MASK_FEATURES
    max_head_dim = 256
    native_grouped_heads = True

    def __init__(self, reduced: bool = False, tiles: str = "auto") -> None:
        self.reduced = reduced
        self.forced_tiles = None if tiles == "auto" else tiles_named(tiles)

    def extra_reasons(self, case: Case) -> Iterable[str]:
        if find_spec("triton") is None:
            yield "triton is not installed: pip install 'mha-bench[triton]'"
        elif case.device in self.devices:
            yield from self.device_reasons(case)
        programs = most_programs(case.config)
        if programs > LARGEST_GRID:
            yield f"programs={programs} (at most {LARGEST_GRID}: an axis of the launch grid)"

    def device_reasons(self, case: Case) -> Iterable[str]:
        """Why the device can't run the kernels, whatever the case."""
        if missing := missing_device(case.device):
            yield from missing
            return
        capability = torch.cuda.get_device_capability()
        if capability < _LEAST_CAPABILITY:
            least = _dotted(_LEAST_CAPABILITY)
            yield f"compute capability {_dotted(capability)} (at least {least})"
        elif self.forces_descriptors and not self.has_descriptors():
            asked, least = self.forced_tiles, _dotted(LEAST_FOR_DESCRIPTORS)
            yield (
                f"tiles={asked}: compute capability {_dotted(capability)} "
                f"(at least {least} for tensor descriptors)"
            )

    @property
    def forces_descriptors(self) -> bool:
        """Whether the caller asked for loads by tensor descriptors."""
        return self.forced_tiles is not None and self.forced_tiles.by_descriptors

    def has_descriptors(self) -> bool:
        """Whether the device copies tiles by tensor descriptors."""
        return torch.cuda.get_device_capability() >= LEAST_FOR_DESCRIPTORS

    def version(self) -> str:
        return f"triton {version('triton')}, torch {torch.__version__}"

    def contract(self, case: Case) -> Contract:
        """Products are never TF32, whatever torch's own may be."""
        is_reduced = self.reduced and case.config.dtype is DType.FLOAT32
        return Contract.BF16X3 if is_reduced else Contract.FUSED

    def kernel(self, case: Case, inputs: Inputs) -> str:
        """Names tiles and loads of each kernel, and how heads and keys are divided."""
        plan = self.plan(case, MaskTensors())
        what = described(plan, inputs, case.mode.has_gradients)
        return f"fused triton {version('triton')} {case.config.dtype}, {what}"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        plan = self.plan(case, masks)
        text = text_of(plan)

        def attend_or_be_compiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if torch.compiler.is_compiling():
                return attend_as_operator(text, masks, q, k, v)
            return attend(plan, q, k, v)

        return attend_or_be_compiled

    def make_attend_with_lse(self, case: Case, masks: MaskTensors) -> AttendWithLse:
        plan = self.plan(case, masks)

        def attend_with_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            output, statistics = plan.forward(q, k, v)
            return output, plan.lse(statistics)

        return attend_with_lse

    def multiprocessors(self) -> int:
        """How many programs the device runs side by side, if each fills one multiprocessor."""
        return int(torch.cuda.get_device_properties().multi_processor_count)

    def plan(self, case: Case, masks: MaskTensors) -> Plan:
        """The launches for a case, tiles chosen."""
        c = case.config
        tiles = first_tiles(c) if self.forced_tiles is None else TileSet.of(self.forced_tiles)
        pack = heads_per_tile(c)
        programs = forward_programs(c, tiles.forward, pack, parts=1)
        plan = Plan(
            c,
            masks,
            tiles,
            precision="bf16x3" if self.contract(case) is Contract.BF16X3 else "ieee",
            pack=pack,
            parts=parts_of_keys(programs, c.kv_seq_len, self.multiprocessors()),
            heads_inside=case.scope is Scope.LAYER,
        )
        if self.forced_tiles is not None or not is_worth_trying(c):
            return plan
        try_both = self.has_descriptors() and not refused_descriptors(c, None)
        return plan.with_tiles(tuned_tiles(plan.without_masks, case.mode.has_gradients, try_both))


def heads_per_tile(c: AttentionConfig) -> int:
    """All heads that share a key head where a tile holds their queries, else one."""
    return c.group_size if has_few_queries(c) else 1


def parts_of_keys(programs: int, kv_seq_len: int, multiprocessors: int) -> int:
    """Parts that give each multiprocessor a program, none of them too short to be worth it."""
    wanted = multiprocessors // max(programs, 1)
    return max(1, min(wanted, kv_seq_len // LEAST_KEYS_PER_PART))


def most_programs(c: AttentionConfig) -> int:
    """Programs of the largest launch, at the smallest tiles."""
    rows = max(c.seq_len, c.kv_seq_len)
    return c.batch_size * c.num_heads * max(-(-rows // SMALLEST_TILE), c.seq_len)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
