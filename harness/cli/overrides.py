"""The sweep's grammar: what is typed becomes what Hydra takes, before Hydra sees it.

Hydra reserves ``num_heads=8,16`` and ``range(...)`` for its multirun. Here they are lists within
one run: read with Hydra's own parser, handed on as ``num_heads=[8,16]``. With ``-m`` they stay as
typed, and Hydra makes one job of each combination; only implementations stay together even then,
since they must be timed side by side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString
from hydra.errors import HydraException

from harness.cli.groups import IMPLEMENTATION
from harness.errors import InvalidValueError
from harness.planning.axes import AXES
from harness.planning.names import unknown_name

LISTED_GROUPS = (IMPLEMENTATION, "model")
_OPTION = re.compile(r"implementations\.[^.]+\.options\.[^.]+")

GroupOptions = Callable[[str], list[str]]


def rewrite(overrides: Iterable[str], options: GroupOptions, *, multirun: bool) -> list[str]:
    """The same overrides, in a form that Hydra composes into one configuration.

    Args:
        options: Gives the options of a group.
        multirun: Leave lists of values to Hydra's sweeper.

    Raises:
        InvalidValueError: Hydra's grammar has no such form, a group has no such option, or a key
            takes one value only.
    """
    return [_rewrite(_parse(text), options, multirun) for text in overrides]


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise InvalidValueError(
            "sweep", f"KEY=VALUE in Hydra's grammar ({_problem(error)})", text
        ) from None


def _problem(error: HydraException) -> str:
    """What the parser stumbled over, without the list of all tokens that it knows."""
    return str(error).splitlines()[0].partition(" expecting ")[0]


def _rewrite(override: Override, options: GroupOptions, multirun: bool) -> str:
    key = override.key_or_group
    text = override.input_line or ""
    if key in LISTED_GROUPS and not override.is_delete():
        return f"{override.get_key_element()}=[{','.join(_chosen(override, options(key)))}]"
    if _OPTION.fullmatch(key) and not override.is_delete():
        # A plug-in declares its options in code, so none is known to the schema.
        text = f"++{key}={text.partition('=')[2]}"
    if not override.is_sweep_override() or multirun or key.startswith("hydra"):
        return text
    if key not in AXES and not _OPTION.fullmatch(key):
        raise InvalidValueError(
            key, "one value (with -m each of several is a job of its own)", text.partition("=")[2]
        )
    if not override.is_discrete_sweep():
        raise InvalidValueError(key, "values that can be listed", text.partition("=")[2])
    return f"{text.partition('=')[0]}=[{','.join(override.sweep_string_iterator())}]"


def _chosen(override: Override, options: list[str]) -> list[str]:
    """Names of a list, comma list or glob, ``all`` expanded, each once."""
    chosen: dict[str, None] = {}
    for name in _names(override, options):
        if name == "all":
            chosen |= dict.fromkeys(options)
        elif name in options or "/" in name:
            chosen[name] = None
        else:
            group = override.key_or_group
            raise unknown_name(group, f"the name of {_ARTICLES[group]}", name, [*options, "all"])
    return list(chosen)


_ARTICLES = {IMPLEMENTATION: "an implementation", "model": "a model"}


def _names(override: Override, options: list[str]) -> list[str]:
    value: Any = override.value()
    if isinstance(value, Glob):
        return value.filter(options)
    if override.is_sweep_override():
        value = list(override.sweep_iterator())
    listed = value if isinstance(value, list) else [value]
    return [name.text if isinstance(name, QuotedString) else str(name) for name in listed]


def first_values(overrides: Iterable[str]) -> list[str]:
    """The overrides of a multirun's first job."""
    parsed = [_parse(text) for text in overrides]
    return [
        f"{o.get_key_element()}={next(iter(o.sweep_string_iterator()))}"
        if o.is_discrete_sweep()
        else str(o.input_line)
        for o in parsed
    ]


def quoted(text: str) -> str:
    """Any text as one value of an override."""
    return QuotedString(text, Quote.single).with_quotes()
