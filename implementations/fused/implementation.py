"""``fused``: this project's own attention kernels, chosen by the case's device."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from harness.attention import AttentionConfig
from harness.interface import (
    ALL_MASK_FEATURES,
    Attend,
    AttendWithLse,
    AttentionImplementation,
    Case,
    Contract,
    DType,
    Inputs,
    InvalidValueError,
    MaskForm,
    MaskTensors,
    Scope,
    torch_dtype,
)
from implementations.fused.autograd import attend_as_operator, differentiable, forward
from implementations.fused.cuda import FusedOnCuda
from implementations.fused.native import MISSING, Path, library, runnable_paths
from implementations.fused.plan import UNLIMITED, Geometry, MaskParts, Plan, Sizes
from implementations.fused.selection import Precision, Selection, select


class Fused(AttentionImplementation):
    """Flash-style attention: in C++ on the CPU, in Triton on CUDA.

    csrc/README.md is the map of the CPU's kernels, ``cuda`` that of the others.

    Args:
        precision: ``full`` or ``bf16x3``, see ``Precision``.
        path: Instruction set to use: ``portable``, ``avx2``, ``avx512`` or ``amx``; ``auto`` takes
            the fastest that this machine can run. On the CPU only.
        tiles: Sizes of the kernels' tiles by name, see ``cuda.tiles``; ``auto`` takes the fastest
            of those it tries. On CUDA only.
    """

    name = "fused"
    devices = frozenset({"cpu", "cuda"})
    dtypes = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
    mask_features = ALL_MASK_FEATURES
    native_grouped_heads = True

    def __init__(self, precision: str = "full", path: str = "auto", tiles: str = "auto") -> None:
        if precision not in list(Precision):
            raise InvalidValueError("precision", "a precision", precision, list(Precision))
        names = {p.name.lower(): p for p in Path}
        if path != "auto" and path not in names:
            raise InvalidValueError("path", "a path", path, ["auto", *names])
        self.precision = Precision(precision)
        self.forced_path = names.get(path)
        self.on_cuda = FusedOnCuda(self.precision is Precision.BF16X3, tiles)

    def unsupported_reasons(self, case: Case) -> tuple[str, ...]:
        if case.device == "cuda":
            return self.on_cuda.unsupported_reasons(case)
        return super().unsupported_reasons(case)

    def extra_reasons(self, case: Case) -> Iterable[str]:
        if library() is None:
            yield MISSING
        elif self.forced_path is not None and self.forced_path not in runnable_paths():
            able = ", ".join(path.name.lower() for path in runnable_paths())
            yield f"path={self.forced_path.name.lower()} (this machine can run {able})"

    def kernel(self, case: Case, inputs: Inputs) -> str:
        """The kernel that a call runs: values that tiles can't hold are found by calling."""
        if case.device == "cuda":
            return self.on_cuda.kernel(case, inputs)
        chosen, dtype = self._selection(case.config), case.config.dtype
        if chosen.path is Path.AMX:
            probe = _Probe(self.precision, self.forced_path)
            with torch.no_grad():
                probe.prepare(case, inputs)()
            if any(plan.was_recomputed for plan in probe.plans):
                return f"{chosen.on_vectors().describe(dtype)} (values beyond amx)"
        return chosen.describe(dtype)

    def mask_form(self, case: Case) -> MaskForm:
        return case.config.mask.form_by_parts

    def contract(self, case: Case) -> Contract:
        """Three products for one are a reduced precision of float32, and judged as that."""
        reduced = self.precision is Precision.BF16X3 and case.config.dtype is DType.FLOAT32
        return Contract.BF16X3 if reduced else Contract.FUSED

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        if case.device == "cuda":
            return self.on_cuda.make_attend(case, masks)
        c = case.config
        plan = self.plan(c, masks, heads_inside=case.scope is Scope.LAYER)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if torch.compiler.is_compiling():
                return attend_as_operator(plan, q, k, v)
            if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
                return differentiable(plan, q, k, v)
            out = plan.new_output()
            plan.forward(q, k, v, out, None)
            return out

        return attend

    def make_attend_with_lse(self, case: Case, masks: MaskTensors) -> AttendWithLse:
        if case.device == "cuda":
            return self.on_cuda.make_attend_with_lse(case, masks)
        return partial(forward, self.plan(case.config, masks))

    def plan(self, c: AttentionConfig, masks: MaskTensors, heads_inside: bool = False) -> Plan:
        """The native call for a config."""
        chosen = self._selection(c)
        heads = (c.batch_size, c.num_heads, c.num_kv_heads)
        return Plan(
            Sizes(*heads, c.seq_len, c.kv_seq_len, c.head_dim, c.head_dim),
            torch_dtype(c.dtype),
            chosen.path,
            c.scale,
            geometry_of(c),
            MaskParts(masks.key_padding, masks.keep, masks.bias),
            chosen.products,
            heads_inside,
        )

    def _selection(self, c: AttentionConfig) -> Selection:
        return select(runnable_paths(), self.forced_path, c, self.precision)


class _Probe(Fused):
    """Keeps the plans that a call uses."""

    def __init__(self, precision: Precision, path: Path | None) -> None:
        super().__init__(precision, "auto" if path is None else path.name.lower())
        self.plans: list[Plan] = []

    def plan(self, c: AttentionConfig, masks: MaskTensors, heads_inside: bool = False) -> Plan:
        self.plans.append(super().plan(c, masks, heads_inside))
        return self.plans[-1]


def geometry_of(c: AttentionConfig) -> Geometry:
    """Causal triangle and window of a config as numbers of visible keys before and after."""
    before = UNLIMITED if c.mask.window is None else c.mask.window - 1
    after = 0 if c.is_causal else before
    return Geometry(c.causal_offset, before, after)
