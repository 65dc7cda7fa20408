"""Activations of a real model as inputs: reading a captured file, and making one."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from harness.errors import InvalidValueError


def save_captured(path: str | Path, **tensors: Tensor) -> None:
    """Store activations of a real model for ``inputs=captured:PATH``.

    Args:
        tensors: ``q``, ``k`` and ``v`` ``[batch, heads, length, head_dim]``; or ``x`` ``[batch,
            length, hidden_size]`` with, where they are at hand, ``x_kv``, ``w_qkv`` and ``w_o``.
    """
    from safetensors.torch import save_file

    known = {"q", "k", "v", "x", "x_kv", "w_qkv", "w_o"}
    for name in tensors:
        if name not in known:
            raise InvalidValueError("tensors", "names of captured tensors", name, sorted(known))
    save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, str(path))


def captured_qkv(
    path: Path, queries: tuple[int, ...], keys: tuple[int, ...], index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The first batch entries, heads and positions of the file.

    Sets differ by the signs of v (index bit 0) and of both q and k (bit 1): real scores and an
    equal error, yet other numbers. They repeat after four.
    """
    tensors = _load(path)
    q, k, v = (
        tensors[name][tuple(slice(size) for size in shape)]
        for name, shape in (("q", queries), ("k", keys), ("v", keys))
    )
    sign_v, sign_qk = (-1.0) ** (index & 1), (-1.0) ** (index >> 1 & 1)
    return q * sign_qk, k * sign_qk, v * sign_v


def captured_layer(path: Path, drawn: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    """Captured tensors in place of drawn ones; sets differ by the sign of x and x_kv."""
    tensors = {name: t for name, t in _load(path).items() if name in drawn}
    sign = (-1.0) ** (index & 1)
    cut = {n: t[tuple(slice(size) for size in drawn[n].shape)] for n, t in tensors.items()}
    return {name: t * sign if name in ("x", "x_kv") else t for name, t in cut.items()}


def _load(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    loaded: dict[str, Tensor] = load_file(str(path))
    return loaded
