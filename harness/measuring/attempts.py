"""Running foreign code: whatever it raises becomes the status of a row.

The one place of the harness that catches broadly.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace

import torch

from harness.errors import PluginError, UnsupportedCaseError
from harness.rows import Row, Status, failed


def attempt(step: Callable[[], None]) -> BaseException | None:
    """Run a step that calls foreign code; its exception, or None.

    A ``sys.exit`` of foreign code is caught too; the user's interrupt is not. The exception keeps
    its traceback, but no longer the variables of what failed: gigabytes that foreign code took
    before it failed must not be missing to whoever runs next.
    """
    try:
        step()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _release_variables(error)
        return error
    return None


def _release_variables(error: BaseException | None) -> None:
    """Clear the frames that an exception, and those that led to it, keep alive."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def failed_by(row: Row, problem: BaseException, while_doing: str) -> Row:
    """The row with the status, reason and traceback of an exception."""
    status, reason = status_and_reason(problem)
    log = "".join(traceback.format_exception(problem))
    return failed(replace(row, reasons=()), status, f"{reason} (in {while_doing})", log=log)


def status_and_reason(problem: BaseException) -> tuple[Status, str]:
    """What an exception means for a row, and its reason on one line."""
    message = f"{type(problem).__name__}: {problem}".strip().removesuffix(":")
    first_line = message.splitlines()[0]
    if isinstance(problem, UnsupportedCaseError):
        return Status.UNSUPPORTED, str(problem)
    if isinstance(problem, PluginError):
        return Status.ERROR, str(problem)
    if isinstance(problem, SystemExit):
        return Status.CRASHED, f"called sys.exit({problem.code!r})"
    if isinstance(problem, (MemoryError, torch.OutOfMemoryError)) or _is_allocation(message):
        return Status.OUT_OF_MEMORY, first_line
    return Status.ERROR, first_line


def _is_allocation(message: str) -> bool:
    """torch's CPU allocator raises a plain RuntimeError; only its text tells it from others."""
    return "can't allocate memory" in message or "not enough memory" in message
