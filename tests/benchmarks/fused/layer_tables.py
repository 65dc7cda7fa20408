"""The whole layer beside SDPA's and torch's own, and beside what its attention allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from harness.attention import AttentionConfig, Case, Scope
from harness.inputs.sets import make_inputs
from harness.interface import AttentionImplementation, Implementation, LayerInputs
from implementations.torch_mha import TorchMha
from tests.benchmarks.fused.cells import Array, Cell, Figure
from tests.benchmarks.fused.engine import Place, Runs
from tests.benchmarks.fused.plans import FUSED, SDPA, THREE_PRODUCTS, Aim, Choice, Recipe, Table

TORCH_MHA = "torch_mha"
_WIDTHS = [(768, 8), (2048, 16), (4096, 32)]  # (hidden_size, num_heads)
_LENGTHS = [128, 512, 2048]


def _recipes(choice: Choice) -> Iterator[Recipe]:
    widths, lengths = (_WIDTHS[:1], _LENGTHS[:2]) if choice.is_quick else (_WIDTHS, _LENGTHS)
    for dtype, (hidden_size, heads) in product(choice.dtypes, widths):
        for length, threads in product(lengths, choice.threads):
            config = AttentionConfig(
                hidden_size=hidden_size,
                num_heads=heads,
                seq_len=length,
                dtype=dtype,  # type: ignore[arg-type]
            )
            case = Case(config=config, scope=Scope.LAYER, threads=threads)
            place = Place("layer", dtype, f"hidden {hidden_size}/{heads} S{length}", threads)
            yield Recipe(place, partial(_calls, case, choice.rivals(dtype)))


def _calls(case: Case, rivals: Mapping[str, Implementation]) -> Mapping[str, Runs]:
    torch.set_grad_enabled(False)
    inputs = make_inputs(case)
    assert isinstance(inputs, LayerInputs)
    layers = {name: rival.prepare(case, inputs) for name, rival in rivals.items()}
    layers[TORCH_MHA] = TorchMha().prepare(case, inputs)
    alone = {
        _alone(name): _attention_alone(case, inputs, rival)
        for name, rival in rivals.items()
        if isinstance(rival, AttentionImplementation)
    }
    return {name: (call,) for name, call in (layers | alone).items()}


def _attention_alone(
    case: Case, inputs: LayerInputs, rival: AttentionImplementation
) -> Callable[[], Tensor]:
    """The part of the layer between its projections, on views of the packed product."""
    c = case.config
    packed = inputs.x @ inputs.weights.w_qkv.T
    heads = packed.view(1, c.seq_len, 3 * c.num_heads, c.head_dim).transpose(1, 2)
    q, k, v = heads.chunk(3, dim=1)
    attend = rival.make_attend(case, inputs.masks)
    return lambda: attend(q, k, v).transpose(1, 2).flatten(2)


def _alone(name: str) -> str:
    return f"attention of {name}"


def _share_of_allowed(own: str) -> Figure:
    """The layer's ratio by the ratio that it would have if nothing but attention differed.

    That one from medians: in a single round a hiccup of the attention can exceed the whole layer.
    """

    def logs(cell: Cell, times: Mapping[str, Array]) -> Array:
        whole, theirs, ours = (np.median(times[n]) for n in (SDPA, _alone(SDPA), _alone(own)))
        allowed = np.log(whole / (whole - theirs + ours))
        found: Array = np.log(times[SDPA]) - np.log(times[own]) - allowed
        return found

    return logs


def _aims(group: str) -> Sequence[Aim]:
    aims = []
    for own in (FUSED, THREE_PRODUCTS):
        share, words = (
            _share_of_allowed(own),
            f"share of the ratio that the attention of {own} allows",
        )
        aims += [
            Aim(SDPA, own, least=1.0),
            Aim(SDPA, own, least=0.9, figure=share, words=words),
            Aim(TORCH_MHA, own, least=1.0),
        ]
    return aims


LAYER = Table("layer", "The layer", _recipes, _aims)
