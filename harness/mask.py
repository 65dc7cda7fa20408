"""Which (query, key) pairs attend: one description for every implementation, with a text form for
sweeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.choices import require_int
from harness.errors import InvalidValueError


class Causal(StrEnum):
    """Which keys a query may see, by position.

    ``causal`` is legal only where query and key lengths are equal: there both alignments are the
    same mask, and both are stored under this name. Elsewhere the alignment must be named.
    """

    NONE = "none"
    SQUARE = "causal"
    TOP_LEFT = "top_left"  # query i sees keys j <= i
    BOTTOM_RIGHT = "bottom_right"  # query i sees keys j <= i + kv_seq_len - seq_len


class Keep(StrEnum):
    """How a boolean keep-mask (True = attend) comes about."""

    RANDOM = "random"  # each pair kept with probability 0.8, seeded
    DOCUMENT = "document"  # block-diagonal: packed documents that don't see each other
    GIVEN = "given"  # the caller supplies the tensor


class Bias(StrEnum):
    """How an additive bias on the scaled scores comes about."""

    RANDOM = "random"  # seeded standard normal
    ALIBI = "alibi"  # -slope(head) * distance, Press et al. 2022
    GIVEN = "given"  # the caller supplies the tensor


class MaskForm(StrEnum):
    """How an implementation received a mask: who is told a rule need not read an entry per pair."""

    NONE = "none"  # there is no mask
    FLAG = "flag"  # a flag, a number or a rule of positions
    TENSOR = "tensor"  # numbers in memory, read in the call
    BOTH = "flag+tensor"  # parts by rule, parts as tensors
    UNKNOWN = "unknown"  # the implementation does not tell


_PADDING_DEFAULT = 0.25


@dataclass(frozen=True)
class Mask:
    """Which (query, key) pairs attend, and what is added to their scores. All parts combine by AND.

    Args:
        causal: Alignment of the causal triangle.
        window: A query at key position p sees only keys p - window < j (and j < p + window when not
            causal).
        key_padding: Share of the keys that the last batch entry lacks, in [0, 1); entry b of B
            keeps ``ceil(kv_seq_len * (1 - key_padding * (b + 1) / B))`` keys, so lengths are
            ragged.
        keep: Origin of a boolean keep-mask.
        bias: Origin of an additive bias.

    ``str(mask)`` and ``Mask.parse`` are each other's inverse: ``none``, ``causal``,
    ``bottom_right+window:256+padding:0.25``, ``document``, ``keep:random+bias:alibi``.
    """

    causal: Causal = Causal.NONE
    window: int | None = None
    key_padding: float = 0.0
    keep: Keep | None = None
    bias: Bias | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            require_int("mask.window", self.window, minimum=1)
        if not 0.0 <= self.key_padding < 1.0:
            raise InvalidValueError(
                "mask.key_padding", "a share of the keys in [0, 1)", self.key_padding
            )

    @property
    def is_none(self) -> bool:
        return self == Mask()

    @property
    def features(self) -> frozenset[str]:
        """Names of the parts in use, for implementations to declare what they can do.

        Of ``causal``, ``top_left``, ``bottom_right``, ``window``, ``key_padding``, ``keep``,
        ``bias``.
        """
        present = {
            self.causal.value: self.causal is not Causal.NONE,
            "window": self.window is not None,
            "key_padding": self.key_padding > 0,
            "keep": self.keep is not None,
            "bias": self.bias is not None,
        }
        return frozenset(name for name, used in present.items() if used)

    @property
    def form_by_parts(self) -> MaskForm:
        """The form where each part keeps its own: triangle and window as rules, the rest as
        tensors.
        """
        by_rule = self.features & {"causal", "top_left", "bottom_right", "window"}
        if by_rule != self.features:
            return MaskForm.BOTH if by_rule else MaskForm.TENSOR
        return MaskForm.FLAG if by_rule else MaskForm.NONE

    @property
    def form_as_tensor(self) -> MaskForm:
        """The form where all parts are put into one tensor."""
        return MaskForm.NONE if self.is_none else MaskForm.TENSOR

    def __str__(self) -> str:
        parts = []
        if self.causal is not Causal.NONE:
            parts.append(self.causal.value)
        if self.window is not None:
            parts.append(f"window:{self.window}")
        if self.key_padding:
            parts.append(f"padding:{self.key_padding:g}")
        if self.keep is not None:
            parts.append("document" if self.keep is Keep.DOCUMENT else f"keep:{self.keep.value}")
        if self.bias is not None:
            parts.append(f"bias:{self.bias.value}")
        return "+".join(parts) or "none"

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Read the text form of a mask.

        Raises:
            InvalidValueError: a part is unknown, given twice, or has an illegal value.
        """
        chosen: dict[str, Any] = {}
        for part in str(text).split("+"):
            for name, value in _parse_mask_part(part.strip().lower(), text).items():
                if name in chosen:
                    raise InvalidValueError("mask", f"one {name} only", text)
                chosen[name] = value
        return cls(**chosen)


MASK_FORMS = (
    "none",
    "causal",
    "top_left",
    "bottom_right",
    "window:N",
    "padding[:SHARE]",
    "document",
    "keep:random",
    "bias:random",
    "bias:alibi",
    "and any of them joined by +",
)


def _parse_mask_part(part: str, whole: str) -> dict[str, Any]:
    name, _, value = part.partition(":")
    try:
        if name == "none" and not value:
            return {}
        if name in {member.value for member in Causal} and not value:
            return {"causal": Causal(name)}
        if name == "window":
            return {"window": int(value)}
        if name == "padding":
            return {"key_padding": float(value) if value else _PADDING_DEFAULT}
        if name == "document" and not value:
            return {"keep": Keep.DOCUMENT}
        if name == "keep":
            return {"keep": Keep(value)}
        if name == "bias":
            return {"bias": Bias(value)}
    except InvalidValueError:
        raise
    except ValueError:
        pass
    raise InvalidValueError("mask", "a mask", whole, MASK_FORMS)
