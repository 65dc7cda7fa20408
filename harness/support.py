"""The support matrix: what every implementation can do, along each axis, on each device.

Claims come from ``unsupported_reasons``, asked about one easy case varied along one axis at a time,
so that what an implementation asks of its package counts as much as what it declares. Needs no
torch: the questions are answered in a worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from harness.attention import Case, DType, Mode, Scope
from harness.cells import Claims, ask_claims
from harness.settings import ImplementationSpec
from harness.worker import ForkServer

HEAD_DIMS = (1, 8, 16, 24, 32, 40, 48, 63, 64, 80, 96, 100, 128, 160, 192, 256, 257, 320, 512)
MASKS = (
    "causal",
    "top_left",
    "bottom_right",
    "window:8",
    "padding:0.5",
    "document",
    "keep:random",
    "bias:alibi",
)
_NEEDS_OTHER_LENGTH = ("top_left", "bottom_right")
_EASY: Mapping[str, Any] = {"num_heads": 4, "head_dim": 64, "hidden_size": 256, "seq_len": 32}


@dataclass(frozen=True)
class Support:
    """What one implementation claims on one device.

    Every set is what works when all else is easy; ``dtypes`` is empty where nothing works, and
    ``reasons`` says why.

    Args:
        head_dims: In words, e.g. ``1..512`` or ``16, 32, 64``; of the values in ``HEAD_DIMS``.
        masks: Of those in ``MASKS``.
        grouped_heads: Whether fewer key/value heads than query heads are taken.
        dropout: Whether dropout in training is taken.
    """

    implementation: str
    device: str
    dtypes: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    head_dims: str = ""
    grouped_heads: bool = False
    dropout: bool = False
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Questions:
    """The easy cases of one device by dtype and scope, each with its variations."""

    device: str
    scope: Scope
    dtype: DType
    easy: Case = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "easy", self.case())

    def case(self, **axes: Any) -> Case:
        chosen = {"device": self.device, "scope": self.scope.value, "dtype": self.dtype.value}
        return Case.from_dict({**_EASY, **chosen, **axes})

    def by_mode(self) -> dict[str, Case]:
        return {mode.value: self.case(mode=mode.value) for mode in Mode}

    def by_mask(self) -> dict[str, Case]:
        return {
            mask: self.case(mask=mask, kv_seq_len=48 if mask in _NEEDS_OTHER_LENGTH else 32)
            for mask in MASKS
        }

    def by_head_dim(self) -> dict[str, Case]:
        return {str(d): self.case(head_dim=d, hidden_size=4 * d) for d in HEAD_DIMS}

    def others(self) -> dict[str, Case]:
        return {
            "grouped_heads": self.case(num_kv_heads=2),
            "dropout": self.case(dropout_p=0.1, mode=Mode.FORWARD_TRAIN.value),
        }

    def all(self) -> Iterator[Case]:
        yield self.easy
        for group in (self.by_mode(), self.by_mask(), self.by_head_dim(), self.others()):
            yield from group.values()


@cache
def _questions(device: str) -> tuple[_Questions, ...]:
    return tuple(_Questions(device, scope, dtype) for scope in Scope for dtype in DType)


def support_matrix(
    server: ForkServer, specs: Sequence[ImplementationSpec], devices: Sequence[str]
) -> tuple[Support, ...]:
    """One line for each implementation and device, in that order."""
    asked = {case for device in devices for q in _questions(device) for case in q.all()}
    claims = ask_claims(server, specs, tuple(asked))
    return tuple(_support(spec.name, device, claims) for spec in specs for device in devices)


def _support(name: str, device: str, claims: Claims) -> Support:
    if name in claims.problems:
        return Support(name, device, reasons=(claims.problems[name][1],))

    def able(case: Case) -> bool:
        return (name, case.key) not in claims.unsupported

    questions = _questions(device)
    working = [q for q in questions if able(q.easy)]
    if not working:
        said = [claims.unsupported[name, q.easy.key] for q in questions]
        return Support(name, device, reasons=_shared(said) or said[0])
    # The dtype and scope that can do most stands for all.
    best = max(working, key=lambda q: sum(able(case) for case in q.all()))
    others = best.others()
    return Support(
        name,
        device,
        tuple(dict.fromkeys(q.dtype.value for q in working)),
        tuple(dict.fromkeys(q.scope.value for q in working)),
        tuple(mode for mode, case in best.by_mode().items() if able(case)),
        tuple(mask for mask, case in best.by_mask().items() if able(case)),
        _in_words([int(d) for d, case in best.by_head_dim().items() if able(case)]),
        grouped_heads=able(others["grouped_heads"]),
        dropout=able(others["dropout"]),
    )


def _shared(said: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(text for text in said[0] if all(text in other for other in said))


def _in_words(head_dims: list[int]) -> str:
    """``1..512`` for all of the asked ones between two, ``16, 32`` where some are missing."""
    if not head_dims:
        return "none"
    low, high = min(head_dims), max(head_dims)
    for step in (1, 8):
        between = [d for d in HEAD_DIMS if low <= d <= high and d % step == 0]
        if head_dims == between and len(between) > 2:
            return f"{low}..{high}" + (f" by {step}" if step > 1 else "")
    return ", ".join(map(str, head_dims))


def why(server: ForkServer, spec: ImplementationSpec, case: Case) -> tuple[str, ...]:
    """Why one implementation can't do one case; empty: it says that it can."""
    claims = ask_claims(server, (spec,), (case,))
    if spec.name in claims.problems:
        return (claims.problems[spec.name][1],)
    return claims.unsupported.get((spec.name, case.key), ())
