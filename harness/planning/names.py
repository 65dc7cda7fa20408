"""The error for a name that does not exist: it says which existing one was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from harness.errors import InvalidValueError


def unknown_name(
    argument: str, kind: str, actual: str, choices: Iterable[object]
) -> InvalidValueError:
    """The error to raise where ``actual`` is not among ``choices``.

    Args:
        kind: What the name should have been, with its article: ``an implementation``.
    """
    names = [str(choice) for choice in choices]
    close = difflib.get_close_matches(actual, names, n=3)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return InvalidValueError(argument, kind + hint, actual, names)
