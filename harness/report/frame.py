"""What every HTML page shares: one file without network, scripts and styles inside."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from harness.report import charts


def page_of(template: str, script: str, names: Sequence[str], data: Any, **values: Any) -> str:
    """A page from a template that extends ``frame.html.j2``.

    Args:
        names: Implementations; they get colours ``.c0``, ``.c1`` and shapes in this order.
        data: What the script reads, as JSON values.

    Raises:
        ImportError: altair or vl-convert is not installed.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        loader=FunctionLoader(_asset),
    )
    environment.filters["unbroken"] = _unbroken
    return environment.get_template(template).render(
        names=list(names),
        colours=charts.colours(names),
        shapes=charts.shapes(names),
        style=_asset("page.css"),
        frame=_asset("frame.js"),
        script=_asset(script),
        runtime=charts.runtime(),
        data=_script_json(data),
        **values,
    )


def _unbroken(text: str) -> str:
    """A number and its unit, or the ends of an interval, stay on one line."""
    return re.sub(r"(?<=\d) (?=[%\w])|(?<=\d%,) |(?<=\d,) (?=\d)", "\u00a0", text)


def _asset(name: str) -> str:
    return (resources.files("harness.report") / name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, sort_keys=True)
    return text.replace("<", "\\u003c")
