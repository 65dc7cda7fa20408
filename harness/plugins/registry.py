"""From ``module:Class`` and options to an implementation, or to an error that helps.

A target names a class, a function that returns an implementation, a finished implementation, or a
plain function of q, k and v.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from harness.errors import MhaBenchError, PluginError
from harness.plugins.plugin_import import find_target, raise_in_its_words
from harness.settings import ImplementationSpec

if TYPE_CHECKING:
    from harness.interface import Implementation

ENTRY_POINT_GROUP = "mha_bench.implementations"


def installed_plugins() -> tuple[ImplementationSpec, ...]:
    """Implementations that installed distributions offer as entry points, by name; imports none."""
    found = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)
    return tuple(ImplementationSpec(point.name, point.value) for point in found)


def load_implementation(spec: ImplementationSpec) -> Implementation:
    """Import, construct and check one implementation.

    Raises:
        PluginError: anything is wrong with it; says what, in its own words where it raised.
    """
    try:
        target = find_target(spec.target)
        return _named(spec, _checked(_construct(spec, target)))
    except PluginError as error:
        raise PluginError(f"implementation {spec.name!r} ({spec.target}): {error}") from error


def _construct(spec: ImplementationSpec, target: Any) -> Any:
    from harness.interface import Implementation

    if isinstance(target, Implementation) and not inspect.isclass(target):
        if spec.options:
            raise PluginError(f"it is an object already and takes no options, got {_listed(spec)}")
        return copy.copy(target)
    if not callable(target):
        raise PluginError(
            f"expected a class, a function or an implementation, got {type(target).__name__}"
        )
    if inspect.isabstract(target):
        lacking = ", ".join(sorted(target.__abstractmethods__))
        raise PluginError(f"class {target.__name__} is abstract: it lacks {lacking}")
    if _is_attention_function(target, spec.options):
        return _from_function(spec, target)
    return _call(spec, target)


def _is_attention_function(target: Any, options: Mapping[str, Any]) -> bool:
    """Whether its first three parameters are tensors: positional, without default, no options."""
    if not inspect.isfunction(target):
        return False
    first = list(inspect.signature(target).parameters.values())[:3]
    return len(first) == 3 and all(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and p.default is p.empty
        and p.name not in options
        for p in first
    )


def _from_function(spec: ImplementationSpec, function: Callable[..., Any]) -> Any:
    from harness.plugins.function_plugin import implementation_from_function

    try:
        return implementation_from_function(function, options=spec.options)
    except MhaBenchError as error:
        raise PluginError(str(error)) from error


def _call(spec: ImplementationSpec, target: Callable[..., Any]) -> Any:
    try:
        signature = inspect.signature(target)
    except ValueError:
        signature = inspect.Signature([inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)])
    try:
        signature.bind(**spec.options)
    except TypeError as error:
        name = getattr(target, "__name__", type(target).__name__)
        hint = _FUNCTION_HINT if inspect.isfunction(target) else ""
        called = f"it takes {name}{signature}, got {_listed(spec)}{hint}"
        raise PluginError(f"{error}: {called}") from None
    try:
        return target(**spec.options)
    except (Exception, SystemExit) as error:
        raise_in_its_words(f"making it with {_listed(spec)}", error)


# What was meant as an attention function looks like one that makes an implementation.
_FUNCTION_HINT = "; a function that computes attention takes q, k and v first, without defaults"


def _listed(spec: ImplementationSpec) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in spec.options.items()) or "no options"


# What the harness calls, with the arguments that it gives.
_METHODS: Mapping[str, tuple[str, ...]] = {
    "unsupported_reasons": ("case",),
    "prepare": ("case", "inputs"),
    "version": (),
    "kernel": ("case", "inputs"),
    "notes": ("case",),
    "contract": ("case",),
    "expected_alloc_bytes": ("case",),
}


def _checked(made: Any) -> Any:
    from harness.interface import AttentionImplementation

    missing = [name for name in _METHODS if not callable(getattr(made, name, None))]
    if missing:
        raise PluginError(
            f"{type(made).__name__} is no implementation: it lacks {', '.join(missing)} (a "
            "subclass of harness.interface.AttentionImplementation has them all but make_attend)"
        )
    methods = dict(_METHODS)
    if isinstance(made, AttentionImplementation):
        methods |= {"make_attend": ("case", "masks"), "mask_form": ("case",)}
    for name, arguments in methods.items():
        signature = inspect.signature(getattr(made, name))
        try:
            signature.bind(*arguments)
        except TypeError:
            called = f"{name}({', '.join(arguments)})"
            raise PluginError(f"{name}{signature} can't be called as {called}") from None
    return made


def _named(spec: ImplementationSpec, made: Any) -> Implementation:
    try:
        made.name = spec.name
    except AttributeError as error:
        raise PluginError(f"its name can't be set to {spec.name!r}: {error}") from None
    implementation: Implementation = made
    return implementation
