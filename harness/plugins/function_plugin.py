"""A plain attention function as an implementation.

::

    def my_attention(q, k, v, scale):       # [B, H, L, D], [B, H, S, D], [B, H, S, D]
        ...

    mine = implementation_from_function(my_attention, mask_features={"causal"})

and ``target: my_kernel:mine``; a function that takes q, k, v alone, ``target:
my_kernel:my_attention``, needs no helper at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from harness.errors import InvalidValueError
from harness.interface import ALL_MASK_FEATURES, Attend, AttentionImplementation, Case, MaskTensors

_OFFERED = ("case", "masks", "scale")
_DECLARATIONS = frozenset(
    {
        "devices",
        "dtypes",
        "modes",
        "scopes",
        "mask_features",
        "max_head_dim",
        "head_dim_multiple",
        "native_grouped_heads",
        "dropout",
    }
)


class FunctionImplementation(AttentionImplementation):
    """What ``implementation_from_function`` makes."""

    def __init__(
        self, function: Callable[..., Tensor], offered: frozenset[str], options: Mapping[str, Any]
    ) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._offered = offered
        self._options = options

    def extra_reasons(self, case: Case) -> Iterable[str]:
        if not case.config.has_default_scale and not self._offered & {"scale", "case"}:
            yield f"scale={case.config.scale:g} (only 1/sqrt(head_dim): it takes no scale)"

    def make_attend(self, case: Case, masks: MaskTensors) -> Attend:
        offers = {"case": case, "masks": masks, "scale": case.config.scale}
        filled = {name: offers[name] for name in self._offered}
        return partial(self._function, **filled, **self._options)

    def version(self) -> str:
        return f"{super().version()}, {self._function.__module__}"


def implementation_from_function(
    function: Callable[..., Tensor],
    *,
    options: Mapping[str, Any] | None = None,
    **declarations: Any,
) -> FunctionImplementation:
    """Make an implementation of a function of q ``[B, H, L, D]``, k and v ``[B, H, S, D]``.

    The function is what is timed. Further parameters called ``case``, ``masks`` or ``scale`` are
    filled in by name; any others are options.

    Args:
        options: Values of the function's own parameters.
        declarations: What it can do, by the names of ``AttentionImplementation``'s attributes, e.g.
            ``mask_features={"causal"}, max_head_dim=128``. Left out: every dtype, and every mask if
            it takes ``masks``, else none.

    Raises:
        InvalidValueError: a declaration or an option is unknown, or the function lacks a parameter.
    """
    options = dict(options or {})
    for name in declarations:
        if name not in _DECLARATIONS:
            raise InvalidValueError("declaration", "a declared limit", name, sorted(_DECLARATIONS))
    parameters = inspect.signature(function).parameters
    offered = frozenset(name for name in _OFFERED if name in parameters and name not in options)
    try:
        inspect.signature(function).bind(None, None, None, **dict.fromkeys(offered), **options)
    except TypeError as error:
        expected = f"parameters q, k, v and of {', '.join(_OFFERED)} ({error})"
        raise InvalidValueError("function", expected, str(inspect.signature(function))) from None
    made = FunctionImplementation(function, offered, options)
    declarations.setdefault("mask_features", ALL_MASK_FEATURES if "masks" in offered else ())
    for name, value in declarations.items():
        setattr(made, name, frozenset(value) if isinstance(value, (set, list, tuple)) else value)
    return made
