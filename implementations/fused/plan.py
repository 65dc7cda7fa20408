"""From a case to a native call: everything that stays the same from call to call, made once.

Shapes: B batch_size, H num_heads, G num_kv_heads, L seq_len, S kv_seq_len, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from implementations.fused.native import ELEMENT_TYPES, Pass, Path, Problem, TensorField, library

UNLIMITED = 2**40  # keys; more than any length, and far from overflow


@dataclass(frozen=True)
class Geometry:
    """Which keys a query sees by position: query i stands at key i + offset.

    Args:
        before: Number of keys that it sees before that position.
        after: The same behind it; 0 for causal masks.
    """

    offset: int = 0
    before: int = UNLIMITED
    after: int = UNLIMITED


@dataclass(frozen=True)
class MaskParts:
    """The mask's tensors.

    Args:
        key_padding: ``[B, S]`` bool.
        keep: ``[L, S]`` or 4-D broadcastable to ``[B, H, L, S]``, bool.
        bias: The same shapes, in the inputs' dtype.
    """

    key_padding: Tensor | None = None
    keep: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True)
class Sizes:
    """Sizes of a problem, as the kernels need them."""

    batch_size: int
    num_heads: int
    num_kv_heads: int
    seq_len: int
    kv_seq_len: int
    qk_dim: int
    v_dim: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> Sizes:
        """From q ``[B, H, L, D]``, k ``[B, G, S, D]`` and v ``[B, G, S, DV]``."""
        batch_size, num_heads, seq_len, qk_dim = q.shape
        return cls(batch_size, num_heads, k.shape[1], seq_len, k.shape[2], qk_dim, v.shape[3])


class Plan:
    """A prepared problem: call it with tensors that have the sizes it was made for.

    Args:
        products: bfloat16 products for one product on AMX: 1, 3, 4 or 6.
        heads_inside: Whether outputs lie in memory as ``[B, L, H, DV]``, which a layer can view as
            ``[B, L, H * DV]``, its concatenated heads, without a copy.

    Attributes:
        was_recomputed: Whether a forward pass met values that tiles can't hold, and was done again
            on vectors.
    """

    def __init__(
        self,
        sizes: Sizes,
        dtype: torch.dtype,
        path: Path,
        scale: float,
        geometry: Geometry,
        masks: MaskParts,
        products: int = 1,
        heads_inside: bool = False,
    ) -> None:
        self.sizes = sizes
        self.was_recomputed = False
        self._remake = partial(Plan, sizes, dtype, Path.AVX512, scale, geometry, masks)
        self.path, self.scale, self.geometry, self.products = path, scale, geometry, products
        self.heads_inside = heads_inside
        self.masks = masks  # kept alive: the addresses below point into them
        problem = Problem(
            **vars(sizes),
            element_type=ELEMENT_TYPES[dtype],
            path=path,
            scale=scale,
            products=products,
            causal_offset=geometry.offset,
            keys_before=geometry.before,
            keys_after=geometry.after,
            key_padding=_padding_field(masks.key_padding),
            keep=_mask_field(masks.keep, sizes),
            bias=_mask_field(masks.bias, sizes),
        )
        self._problem = bytes(problem)
        native = library()
        assert native is not None
        self._run = native.run
        self._forward_scratch = _Scratch(Pass.FORWARD, self._problem)
        self._backward_scratch = _Scratch(Pass.BACKWARD, self._problem)
        outer, inner = sizes.num_heads, sizes.seq_len
        if heads_inside:
            outer, inner = inner, outer
        self._output_like = _like((sizes.batch_size, outer, inner, sizes.v_dim), dtype)

    def new_output(self) -> Tensor:
        """``[B, H, L, DV]``, not yet written."""
        output = torch.empty_like(self._output_like, memory_format=torch.contiguous_format)
        return output.transpose(1, 2) if self.heads_inside else output

    def forward(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> None:
        """Attention of q, k, v into ``out`` ``[B, H, L, DV]``, any strides.

        Args:
            lse: ``[B, H, L]`` float32, contiguous: gets the natural logarithm of each row's sum of
                exponentials.
        """
        threads = torch.get_num_threads()
        scratch = self._forward_scratch.new(threads)
        # Spelt out: loops over the tensors would be a tenth of a tiny call.
        is_done = self._run(
            Pass.FORWARD,
            self._problem,
            threads,
            scratch.data_ptr(),
            0 if lse is None else lse.data_ptr(),
            q.data_ptr(),
            q.stride(),
            k.data_ptr(),
            k.stride(),
            v.data_ptr(),
            v.stride(),
            out.data_ptr(),
            out.stride(),
        )
        if not is_done:
            self.was_recomputed = True
            self._for_any_value.forward(q, k, v, out, lse)

    def backward(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grads: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Gradients of q, k, v into ``grads``, from what ``forward`` gave."""
        threads = torch.get_num_threads()
        scratch = self._backward_scratch.new(threads)
        tensors = (*inputs, out, grad_out, *grads)
        places = (part for x in tensors for part in (x.data_ptr(), x.stride()))
        self._run(
            Pass.BACKWARD, self._problem, threads, scratch.data_ptr(), lse.data_ptr(), *places
        )

    @cached_property
    def _for_any_value(self) -> Plan:
        """The same problem on vectors: tiles can't hold infinities and subnormal numbers."""
        return self._remake()


class _Scratch:
    """Scratch memory of a pass, from torch's allocator, so that measurements of memory see it."""

    def __init__(self, which: Pass, problem: bytes) -> None:
        self._which, self._problem = which, problem
        self._like: dict[int, Tensor] = {}

    def new(self, threads: int) -> Tensor:
        """Bytes for one call."""
        like = self._like.get(threads)
        if like is None:
            native = library()
            assert native is not None
            size = native.scratch_bytes(self._which, self._problem, threads)
            like = self._like[threads] = _like((size,), torch.uint8)
        return torch.empty_like(like, memory_format=torch.contiguous_format)


def _like(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """One element in this shape, for ``empty_like``, which takes half the time of ``empty``."""
    return torch.empty((), dtype=dtype).expand(shape)


def _padding_field(padding: Tensor | None) -> TensorField:
    if padding is None:
        return TensorField()
    return TensorField(padding.data_ptr(), padding.stride(0), 0, 0, padding.stride(1))


def _mask_field(mask: Tensor | None, sizes: Sizes) -> TensorField:
    if mask is None:
        return TensorField()
    full = (sizes.batch_size, sizes.num_heads, sizes.seq_len, sizes.kv_seq_len)
    view = mask.expand(full)  # stride 0 along what is broadcast
    return TensorField(view.data_ptr(), *view.stride())
