"""What the inputs of a case can be drawn from: the legal values of the axis ``inputs=``.

Names and checks only, without torch, so that a plan is made in no time; ``harness.inputs`` draws.

A captured file is a safetensors file with ``q``, ``k`` and ``v`` (scope attention: ``[batch, heads,
length, head_dim]``) or ``x``, for cross-attention ``x_kv``, and optionally ``w_qkv`` and ``w_o``
(scope layer). Make one from a real model with ``harness.inputs.captured.save_captured``, in a
forward hook or a patched attention function::

    save_captured("llama_layer_7.safetensors", q=q, k=k, v=v)
"""

from __future__ import annotations

import json
from pathlib import Path

from harness.attention import Case, Scope
from harness.errors import InvalidValueError

GAUSSIAN = "gaussian"
CAPTURED_PREFIX = "captured:"

DISTRIBUTIONS = {
    GAUSSIAN: "standard normal q, k and v (layer: x, and weights that keep the variance)",
    "logits_x8": "gaussian with queries times 8: peaked softmax",
    "logits_x32": "gaussian with queries times 32: softmax close to one-hot",
    "outlier_channel": "gaussian with one channel of q and k times 20, as in trained models",
    "spikes": "N(0,1) + 10 N(0,1) with probability 0.001",
    "shifted_keys": "gaussian with keys + 8: the output must not change",
    "attention_sink": "gaussian with one key that draws nearly all weight, and a small value there",
    "zero_queries": "queries 0 and values uniform in (0, 1): shows low-precision accumulators",
    "constant_values": "values 1 + N(0,1)/128: cancels in the gradients",
    "subnormal": "gaussian with values in the subnormal range of the dtype",
    "strided": "gaussian in [batch, length, heads, head_dim] memory, seen transposed",
    "nonfinite": "gaussian with a NaN and an infinite query row",
}
LAYER_DISTRIBUTIONS = frozenset({GAUSSIAN, "logits_x8", "logits_x32", "outlier_channel", "spikes"})
_FORMS = (*DISTRIBUTIONS, f"{CAPTURED_PREFIX}FILE.safetensors")


def captured_file(name: str) -> Path | None:
    """The file that ``captured:FILE`` names; None for a drawn distribution."""
    if not name.startswith(CAPTURED_PREFIX):
        return None
    return Path(name.removeprefix(CAPTURED_PREFIX)).expanduser()


def check_distribution(name: str) -> None:
    """Refuse a value of ``inputs=`` that is no distribution, or a captured file that is not there.

    Raises:
        InvalidValueError: naming the choices, or what is wrong with the file.
    """
    path = captured_file(name)
    if path is not None:
        captured_shapes(path)
    elif name not in DISTRIBUTIONS:
        raise InvalidValueError("inputs", "an input distribution", name, _FORMS)


def check_case_distribution(case: Case) -> None:
    """Refuse a case whose distribution does not exist at its scope, or whose captured tensors do
    not fit its sizes.

    Raises:
        InvalidValueError: with what was expected and what there is.
    """
    check_distribution(case.inputs)
    path = captured_file(case.inputs)
    if path is not None:
        _check_captured(case, captured_shapes(path))
    elif case.scope is Scope.LAYER and case.inputs not in LAYER_DISTRIBUTIONS:
        raise InvalidValueError(
            "inputs",
            "a distribution that scope=layer has",
            case.inputs,
            sorted(LAYER_DISTRIBUTIONS),
        )


def captured_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a safetensors file, by name, from its header alone.

    Raises:
        InvalidValueError: the file is missing, unreadable or in another format.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length) if length < path.stat().st_size else b"")
    except OSError as error:
        raise InvalidValueError(
            "inputs", f"a readable file ({error.strerror})", str(path)
        ) from None
    except ValueError:
        raise InvalidValueError("inputs", "a safetensors file", str(path)) from None
    return {name: tuple(t["shape"]) for name, t in header.items() if name != "__metadata__"}


def _check_captured(case: Case, shapes: dict[str, tuple[int, ...]]) -> None:
    for name, due in _captured_minimum(case).items():
        have = shapes.get(name)
        if have is None and name in ("w_qkv", "w_o"):
            continue  # drawn
        if have is None:
            raise InvalidValueError("inputs", f"a captured tensor {name} {due}", sorted(shapes))
        # Widths must agree; of batch entries, heads and positions the first ones are taken.
        exact = slice(0, None) if name.startswith("w_") else slice(-1, None)
        enough = len(have) == len(due) and all(h >= d for h, d in zip(have, due, strict=True))
        if not enough or have[exact] != due[exact]:
            raise InvalidValueError("inputs", f"captured {name} of at least {due}", have)
    if case.scope is Scope.ATTENTION and shapes["q"][1] != shapes["k"][1] * case.config.group_size:
        raise InvalidValueError(
            "inputs",
            f"captured q with {case.config.group_size} times the heads of k",
            (shapes["q"], shapes["k"]),
        )


def _captured_minimum(case: Case) -> dict[str, tuple[int, ...]]:
    c = case.config
    keys = (c.batch_size, c.num_kv_heads, c.kv_seq_len, c.head_dim)
    if case.scope is Scope.ATTENTION:
        return {"q": (c.batch_size, c.num_heads, c.seq_len, c.head_dim), "k": keys, "v": keys}
    width = c.num_heads * c.head_dim
    due = {
        "x": (c.batch_size, c.seq_len, c.hidden_size),
        "x_kv": (c.batch_size, c.kv_seq_len, c.hidden_size),
        "w_qkv": (width + 2 * c.num_kv_heads * c.head_dim, c.hidden_size),
        "w_o": (c.hidden_size, width),
    }
    if c.kv_seq_len == c.seq_len:
        del due["x_kv"]  # self-attention
    return due
