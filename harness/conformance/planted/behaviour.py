"""Planted defects of memory and state, of gradients, and of the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.attention import AttentionConfig, Case
from harness.conformance.planted.sound import Sound
from harness.errors import InvalidValueError
from harness.interface import Attend, LayerWeights, MaskTensors
from harness.tensors import Inputs


class IgnoresStrides(Sound):
    """memory read as if it were contiguous"""

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        attend = super().make_attend(case, masks)

        def packed(tensor: Tensor) -> Tensor:
            strides = torch.empty(tensor.shape, device="meta").stride()
            needed = tensor.storage_offset() + tensor.numel()
            if tensor.untyped_storage().nbytes() < needed * tensor.element_size():
                return tensor  # an expanded tensor: reading on would leave the memory
            return tensor.as_strided(tensor.shape, strides)

        return lambda q, k, v: attend(packed(q), packed(k), packed(v))


class LengthsBeforeHeads(Sound):
    """memory read as [batch, length, heads, head_dim]"""

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        attend = super().make_attend(case, masks)

        def reread(tensor: Tensor) -> Tensor:
            batch_size, heads, length, head_dim = tensor.shape
            return tensor.reshape(batch_size, length, heads, head_dim).transpose(1, 2)

        def undone(tensor: Tensor) -> Tensor:
            return tensor.transpose(1, 2).reshape(tensor.shape)

        return lambda q, k, v: undone(attend(reread(q), reread(k), reread(v)))


class FirstEntryForAll(Sound):
    """every batch entry on the first one's keys"""

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        attend = super().make_attend(case, masks)
        return lambda q, k, v: attend(q, k[:1].expand_as(k), v)


class ReusesItsBuffer(Sound):
    """the output's memory overwritten by the next call"""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], Tensor] = {}

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        attend = super().make_attend(case, masks)

        def reusing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            output = attend(q, k, v)
            if output.requires_grad:
                return output
            key = (*output.shape, output.dtype)
            return self._buffers.setdefault(key, torch.empty_like(output)).copy_(output)

        return reusing


class RemembersResults(Sound):
    """the result of the first call of a shape for all later ones"""

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], Tensor] = {}

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        attend = super().make_attend(case, masks)

        def remembered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                return attend(q, k, v)
            key = (case.key, *q.shape, q.dtype)
            if key not in self._results:
                self._results[key] = attend(q, k, v)
            return self._results[key]

        return remembered


class ChangesItsInputs(Sound):
    """queries scaled in place"""

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        attend = super().make_attend(case, masks)

        def scaling(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            output = attend(q, k, v)
            if not q.requires_grad:
                q *= case.config.scale
            return output

        return scaling


class SwallowsNan(Sound):
    """0 in place of NaN"""

    def normalised(self, weighted: Tensor, total: Tensor) -> Tensor:
        return super().normalised(weighted, total).nan_to_num(0.0)


class NoGradientOfTheSum(Sound):
    """backward without the normaliser's gradient"""

    def normalised(self, weighted: Tensor, total: Tensor) -> Tensor:
        return super().normalised(weighted, total.detach())


class GradientWithoutScale(Sound):
    """gradient of the queries without the scale"""

    def scaled(self, q: Tensor, c: AttentionConfig) -> Tensor:
        return q * c.scale + (q - q.detach()) * (1.0 - c.scale)


class GradientOfOneHeadOfAGroup(Sound):
    """gradient of shared keys from one query head of a group only"""

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        size = case.config.group_size

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if not k.requires_grad or size == 1:
                return self.attend(case.config, masks, q, k, v)
            first = torch.arange(q.shape[1]) % size == 0
            of_first = self.attend(case.config, masks, q, k, v)
            of_others = self.attend(case.config, masks, q, k.detach(), v)
            return torch.where(first[:, None, None], of_first, of_others)

        return attend


class HeadsInterleavedInLayer(Sound):
    """heads cut from every H-th channel of a projection"""

    def make_layer(
        self, case: Case, weights: LayerWeights, attend: Attend
    ) -> Callable[[Tensor, Tensor], Tensor]:
        def heads(projected: Tensor) -> Tensor:
            batch_size, length, width = projected.shape
            d = case.config.head_dim
            return projected.view(batch_size, length, d, width // d).permute(0, 3, 1, 2)

        def layer(x: Tensor, x_kv: Tensor) -> Tensor:
            q, k, v = (
                heads(F.linear(source, w))
                for source, w in ((x, weights.w_q), (x_kv, weights.w_k), (x_kv, weights.w_v))
            )
            return F.linear(attend(q, k, v).transpose(1, 2).flatten(2), weights.w_o)

        return layer


class SelfAttentionOnly(Sound):
    """keys and values from x where x_kv is given"""

    def make_layer(
        self, case: Case, weights: LayerWeights, attend: Attend
    ) -> Callable[[Tensor, Tensor], Tensor]:
        layer = super().make_layer(case, weights, attend)

        def wrong(x: Tensor, x_kv: Tensor) -> Tensor:
            if x_kv is x or not x.shape[1] or not x_kv.shape[1]:
                return layer(x, x_kv)
            source = x.repeat(1, -(-x_kv.shape[1] // x.shape[1]), 1)[:, : x_kv.shape[1]]
            return layer(x, source + 0 * x_kv)

        return wrong


class HalfAGradientOfOutputWeights(Sound):
    """half the gradient of the output projection's weights"""

    def make_layer(
        self, case: Case, weights: LayerWeights, attend: Attend
    ) -> Callable[[Tensor, Tensor], Tensor]:
        halved = 0.5 * weights.w_o + 0.5 * weights.w_o.detach()
        if weights.w_o.requires_grad:
            weights = replace(weights, w_o=halved)
        return super().make_layer(case, weights, attend)


class ForgetsScaleInTraining(Sound):
    """no scale where gradients are recorded"""

    def scaled(self, q: Tensor, c: AttentionConfig) -> Tensor:
        return q if q.requires_grad and torch.is_grad_enabled() else super().scaled(q, c)


class UnsteadySum(Sound):
    """last bits differ from call to call"""

    def __init__(self) -> None:
        self._calls = 0

    def stored(self, output: Tensor, dtype: torch.dtype) -> Tensor:
        self._calls += 1
        rounded = output.to(dtype)
        if self._calls % 2 or rounded.requires_grad:
            return rounded
        return torch.nextafter(rounded, torch.zeros((), dtype=dtype))


class AcceptsAnything(Sound):
    """tensors that do not fit the case accepted"""

    def prepare(self, case: Case, inputs: Inputs) -> Callable[[], Tensor]:
        try:
            return super().prepare(case, inputs)
        except InvalidValueError:
            return lambda: torch.zeros(())


class ClaimsDropout(Sound):
    """dropout claimed, and not done"""

    dropout = True


class SpeaksInLists(Sound):
    """reasons without words"""

    def extra_reasons(self, case: Case) -> Iterable[str]:
        return [""] if case.config.batch_size > 1000 else []


DEFECTS = (
    IgnoresStrides,
    LengthsBeforeHeads,
    FirstEntryForAll,
    ReusesItsBuffer,
    RemembersResults,
    ChangesItsInputs,
    SwallowsNan,
    NoGradientOfTheSum,
    GradientWithoutScale,
    GradientOfOneHeadOfAGroup,
    HeadsInterleavedInLayer,
    SelfAttentionOnly,
    HalfAGradientOfOutputWeights,
    ForgetsScaleInTraining,
    UnsteadySum,
    AcceptsAnything,
    ClaimsDropout,
    SpeaksInLists,
)
