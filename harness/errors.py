"""The exceptions of mha-bench, in one tree.

::

    MhaBenchError
    ├── InvalidValueError     also a ValueError: an argument is wrong; names what would be right
    ├── UnsupportedCaseError  with tensors in hand, an implementation found that it can't do a case
    ├── PluginError           an implementation can't be loaded, or breaks the interface
    ├── WorkerError           the isolated process itself can't be started or spoken to
    └── StoreError            a run's folder can't be read or written

Whoever calls the command line sees the message of any of them on one line and exit code 2; a row
stores type and message of anything else.
"""

from __future__ import annotations

from collections.abc import Iterable


class MhaBenchError(Exception):
    """Base of every exception that mha-bench raises on purpose."""


class InvalidValueError(MhaBenchError, ValueError):
    """An argument has a value that can't be used.

    Args:
        argument: Name of the argument as its user wrote it.
        expected: What would have been right, as a noun phrase.
        actual: What came.
        choices: The legal values, when they can be listed.
    """

    def __init__(
        self, argument: str, expected: str, actual: object, choices: Iterable[object] = ()
    ) -> None:
        self.argument = argument
        self.expected = expected
        self.actual = actual
        self.choices = tuple(str(choice) for choice in choices)
        listed = f"; choices: {', '.join(self.choices)}" if self.choices else ""
        super().__init__(f"{argument}: expected {expected}, got {actual!r}{listed}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.argument, self.expected, self.actual, self.choices)


class UnsupportedCaseError(MhaBenchError):
    """Raised by ``prepare`` when only the tensors themselves show that a case can't be done."""


class PluginError(MhaBenchError):
    """An implementation could not be loaded, or does not keep the interface's promises."""


class WorkerError(MhaBenchError):
    """The isolated process could not be started or spoken to."""


class StoreError(MhaBenchError):
    """A run's folder is missing, not writable, or not a run."""
