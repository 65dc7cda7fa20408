"""What is measured: the mathematics of attention and the circumstances of one measurement.

An ``AttentionConfig`` is the mathematics and nothing else. A ``Case`` adds the circumstances
(scope, mode, device, threads, inputs, cache, allocator, seed): one cell of a sweep, independent of
who computes it. Both are frozen, validate themselves, and import no torch, so that plans and
reports are made without it.

Shapes: B batch_size, H num_heads, G num_kv_heads, D head_dim, L seq_len, S kv_seq_len.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from harness.choices import Allocator, Cache, DType, Mode, Scope, as_choice, require_int
from harness.errors import InvalidValueError
from harness.mask import Bias, Causal, Keep, Mask, MaskForm

__all__ = [
    "Allocator",
    "AttentionConfig",
    "Bias",
    "Cache",
    "Case",
    "Causal",
    "DType",
    "Keep",
    "Mask",
    "MaskForm",
    "Mode",
    "Scope",
]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The mathematics of one multi-head attention problem.

    Sizes left out are derived: ``num_kv_heads = num_heads``, ``head_dim = hidden_size /
    num_heads``, ``kv_seq_len = seq_len``, ``scale = 1 / sqrt(head_dim)``. Empty batches and lengths
    are legal.

    Raises:
        InvalidValueError: a size is not a whole number or too small, ``hidden_size`` is not
            ``num_heads * head_dim`` with ``head_dim`` left out, ``num_heads`` is no multiple of
            ``num_kv_heads``, or a causal mask names no alignment though the lengths differ.
    """

    hidden_size: int
    num_heads: int
    seq_len: int
    batch_size: int = 1
    # The four below are never None after construction; None asks for the derived value.
    num_kv_heads: int = None  # type: ignore[assignment]
    head_dim: int = None  # type: ignore[assignment]
    kv_seq_len: int = None  # type: ignore[assignment]
    scale: float = None  # type: ignore[assignment]
    dtype: DType = DType.FLOAT32
    mask: Mask = Mask()
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        require_int("batch_size", self.batch_size, minimum=0)
        require_int("hidden_size", self.hidden_size, minimum=1)
        require_int("num_heads", self.num_heads, minimum=1)
        require_int("seq_len", self.seq_len, minimum=0)
        self._fill_heads()
        self._fill_lengths_and_scale()
        object.__setattr__(self, "dtype", as_choice("dtype", DType, self.dtype))
        object.__setattr__(self, "mask", self._aligned_mask())
        if not 0.0 <= self.dropout_p < 1.0:
            raise InvalidValueError("dropout_p", "a probability in [0, 1)", self.dropout_p)

    def _fill_heads(self) -> None:
        if self.num_kv_heads is None:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        require_int("num_kv_heads", self.num_kv_heads, minimum=1)
        if self.num_heads % self.num_kv_heads:
            raise InvalidValueError(
                "num_kv_heads", f"a divisor of num_heads={self.num_heads}", self.num_kv_heads
            )
        if self.head_dim is None:
            if self.hidden_size % self.num_heads:
                raise InvalidValueError(
                    "num_heads",
                    f"a divisor of hidden_size={self.hidden_size} (or head_dim given)",
                    self.num_heads,
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_heads)
        require_int("head_dim", self.head_dim, minimum=1)

    def _fill_lengths_and_scale(self) -> None:
        if self.kv_seq_len is None:
            object.__setattr__(self, "kv_seq_len", self.seq_len)
        require_int("kv_seq_len", self.kv_seq_len, minimum=0)
        if self.scale is None:
            object.__setattr__(self, "scale", 1.0 / math.sqrt(self.head_dim))
        if not math.isfinite(self.scale):
            raise InvalidValueError("scale", "a finite number", self.scale)

    def _aligned_mask(self) -> Mask:
        mask = self.mask
        if self.seq_len == self.kv_seq_len:
            if mask.causal is Causal.NONE:
                return mask
            return replace(mask, causal=Causal.SQUARE)
        if mask.causal is Causal.SQUARE:
            raise InvalidValueError(
                "mask",
                f"a named alignment, since seq_len={self.seq_len} is not "
                f"kv_seq_len={self.kv_seq_len}",
                str(mask),
                (Causal.TOP_LEFT, Causal.BOTTOM_RIGHT),
            )
        if mask.window is not None and mask.causal is Causal.NONE:
            raise InvalidValueError(
                "mask",
                "top_left or bottom_right beside a window, since seq_len and kv_seq_len differ",
                str(mask),
            )
        return mask

    @property
    def is_causal(self) -> bool:
        return self.mask.causal is not Causal.NONE

    @property
    def causal_offset(self) -> int:
        """Key position of query 0: query i stands at key position ``i + causal_offset``.

        Causal masks keep keys up to that position, windows are centred on it. 0 except for
        ``bottom_right``.
        """
        return self.kv_seq_len - self.seq_len if self.mask.causal is Causal.BOTTOM_RIGHT else 0

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head: query head i uses key/value head i //
        group_size.
        """
        return self.num_heads // self.num_kv_heads

    @property
    def has_default_scale(self) -> bool:
        return self.scale == 1.0 / math.sqrt(self.head_dim)

    def key_lengths(self) -> tuple[int, ...]:
        """Number of keys that each batch entry keeps under ``mask.key_padding``."""
        shares = (self.mask.key_padding * (b + 1) / self.batch_size for b in range(self.batch_size))
        return tuple(math.ceil(self.kv_seq_len * (1.0 - share)) for share in shares)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cell of a sweep: what is computed and under which circumstances, whoever computes it.

    Args:
        threads: Number of CPU threads that every implementation gets.
        inputs: Name of the input distribution.
        seed: Seed of inputs, masks, round order and dropout.
    """

    config: AttentionConfig
    scope: Scope = Scope.ATTENTION
    mode: Mode = Mode.FORWARD
    device: str = "cpu"
    threads: int = 1
    inputs: str = "gaussian"
    cache: Cache = Cache.WARM
    allocator: Allocator = Allocator.REUSE
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in _CASE_CHOICES.items():
            object.__setattr__(self, name, as_choice(name, kind, getattr(self, name)))
        require_int("threads", self.threads, minimum=1)
        require_int("seed", self.seed, minimum=0)
        if self.config.dropout_p and not self.mode.is_training:
            raise InvalidValueError(
                "dropout_p",
                f"0 with mode={self.mode} (dropout is a training device)",
                self.config.dropout_p,
            )

    @property
    def key(self) -> str:
        """Stable hash of everything that defines the case, equal across processes, machines and
        versions.

        Axes at their default are left out, so that a new axis does not change the keys of old
        cases.
        """
        chosen = {axis: v for axis, v in self.to_dict().items() if _AXIS_DEFAULTS.get(axis) != v}
        canonical = json.dumps(chosen, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def id(self) -> str:
        """Short readable name: the sizes always, everything else where it is not the default."""
        c = self.config
        parts = [f"b{c.batch_size}", f"h{c.hidden_size}x{c.num_heads}", f"s{c.seq_len}"]
        optional = {
            f"g{c.num_kv_heads}": c.num_kv_heads != c.num_heads,
            f"d{c.head_dim}": c.head_dim * c.num_heads != c.hidden_size,
            f"k{c.kv_seq_len}": c.kv_seq_len != c.seq_len,
            c.dtype.value: True,
            str(c.mask): not c.mask.is_none,
            f"scale{c.scale:g}": not c.has_default_scale,
            f"p{c.dropout_p:g}": c.dropout_p > 0,
            self.scope.value: self.scope is not Scope.ATTENTION,
            self.mode.value: self.mode is not Mode.FORWARD,
            self.inputs: self.inputs != "gaussian",
            self.cache.value: self.cache is not Cache.WARM,
            self.allocator.value: self.allocator is not Allocator.REUSE,
            f"{self.device}{self.threads}" if self.device == "cpu" else self.device: True,
            f"seed{self.seed}": self.seed != 0,
        }
        return "-".join(parts + [text for text, shown in optional.items() if shown])

    def to_dict(self) -> dict[str, Any]:
        """All axes, flat, as JSON values; the names are the sweep's axes."""
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "config"}
        flat |= asdict(self.config) | {"mask": str(self.config.mask)}
        return {name: v.value if isinstance(v, StrEnum) else v for name, v in flat.items()}

    @classmethod
    def from_dict(cls, axes: Mapping[str, Any]) -> Case:
        """Inverse of ``to_dict``; axes left out take their defaults.

        Raises:
            InvalidValueError: an axis is unknown or has an illegal value.
        """
        config_names = {f.name for f in fields(AttentionConfig)}
        case_names = {f.name for f in fields(cls)} - {"config"}
        unknown = set(axes) - config_names - case_names
        if unknown:
            choices = sorted(config_names | case_names)
            raise InvalidValueError("axis", "the name of an axis", sorted(unknown)[0], choices)
        config = {name: value for name, value in axes.items() if name in config_names}
        if "mask" in config:
            config["mask"] = Mask.parse(config["mask"])
        circumstances = {name: value for name, value in axes.items() if name in case_names}
        return cls(config=AttentionConfig(**config), **circumstances)


_CASE_CHOICES: dict[str, type[StrEnum]] = {
    "scope": Scope,
    "mode": Mode,
    "cache": Cache,
    "allocator": Allocator,
}


def _axis_defaults() -> dict[str, Any]:
    """Fixed defaults by axis, in JSON form; derived sizes and sizes without a default are not among
    them.
    """
    declared = {f.name: f.default for f in (*fields(AttentionConfig), *fields(Case))}
    fixed = {axis: v for axis, v in declared.items() if v is not MISSING and v is not None}
    return {axis: str(v) if isinstance(v, (StrEnum, Mask)) else v for axis, v in fixed.items()}


_AXIS_DEFAULTS = _axis_defaults()
