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

    A ``sys.exit`` of foreign code is caught too; the user's interrupt is not.
    """
    try:
        step()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


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
