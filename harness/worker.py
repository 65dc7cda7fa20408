"""The isolated process: started from a fork server, watched, ended when it hangs.

A worker runs one function ``target(payload, channel)`` named by ``module:function``, so that the
watching side need not import torch. It may die in any way; the watcher always learns how it ended
and on whose behalf it was running.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from harness.errors import WorkerError

_POLL_S = 0.25
_LOG_TAIL_BYTES = 4000
_NOBODY = -1


class Ending(StrEnum):
    """How a worker ended."""

    FINISHED = "finished"
    CRASHED = "crashed"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Exit:
    """The end of a worker.

    Args:
        culprit: Index last given to ``Channel.enter``; None when nobody was in hand.
        reason: In words, with the signal's name or the exit code.
        log: Tail of what it printed, a segmentation fault's traceback included.
        ran_out_of_memory: Whether the system or an allocator said so.
    """

    ending: Ending
    culprit: int | None = None
    reason: str = ""
    log: str = ""
    ran_out_of_memory: bool = False


class Channel:
    """The worker's side: sends messages, and says who is in hand.

    ``enter`` costs one store to shared memory, so that it can stand beside timed code.
    """

    def __init__(self, connection: Connection, progress: Any) -> None:
        self._connection = connection
        self._progress = progress

    def send(self, message: object) -> None:
        """Give a picklable message to the watcher."""
        self._connection.send(message)

    def enter(self, index: int | None) -> None:
        """Say that from now on index ``index`` is running; None: nobody is."""
        self._progress[0] = _NOBODY if index is None else index
        self._progress[1] += 1


@dataclass(frozen=True)
class Limits:
    """What a worker may use.

    Args:
        stall_s: It is ended when no ``enter`` came for longer than this.
        memory_bytes: Address space that it may take beyond what it has at the start; None: any.
    """

    stall_s: float = 60.0
    memory_bytes: int | None = None


class ForkServer:
    """Starts workers. One for a whole sweep; the server itself starts with the first worker."""

    def __init__(self, preload: tuple[str, ...] = ("harness.measuring.preload",)) -> None:
        # torch.cuda.is_available() in the server would spoil later forks without this
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))

    def run(self, target: str, payload: object, limits: Limits) -> Iterator[object]:
        """Run ``module:function`` in a fresh process.

        Yields:
            Every message that it sends, then one ``Exit``.

        Raises:
            WorkerError: the process could not be started.
        """
        receiver, sender = self._context.Pipe(duplex=False)
        progress = self._context.RawArray("q", [_NOBODY, 0])
        with tempfile.NamedTemporaryFile(prefix="mha-bench-", suffix=".log") as log:
            arguments = (target, payload, sender, progress, limits.memory_bytes, log.name)
            process = self._context.Process(target=_worker_main, args=arguments, daemon=True)
            kills_before = _out_of_memory_kills()
            try:
                with _no_main_module(), _interrupted_later():
                    process.start()
            except (OSError, EOFError) as error:
                raise WorkerError(f"the worker process could not be started: {error}") from error
            sender.close()
            try:
                timed_out = yield from _watch(process, receiver, progress, limits.stall_s)
            finally:
                if process.is_alive():
                    process.kill()
                process.join()
                receiver.close()
            culprit = None if progress[0] == _NOBODY else int(progress[0])
            tail = _tail(Path(log.name))
            killed_for_memory = _out_of_memory_kills() > kills_before
            if timed_out:
                reason = f"no call ended within {limits.stall_s:g} s"
                yield Exit(Ending.TIMEOUT, culprit, reason, tail)
            else:
                yield _exit_of(process.exitcode, culprit, tail, killed_for_memory)


def _watch(
    process: Any, receiver: Connection, progress: Any, stall_s: float
) -> Generator[object, None, bool]:
    """Yield messages until the worker is gone; returns whether it had stalled."""
    last_progress, last_change = int(progress[1]), time.monotonic()
    while True:
        if receiver.poll(_POLL_S):
            try:
                yield receiver.recv()
            except (EOFError, OSError):
                process.join(timeout=5.0)
                return bool(process.is_alive())
            last_change = time.monotonic()
            continue
        if progress[1] != last_progress:
            last_progress, last_change = int(progress[1]), time.monotonic()
        elif time.monotonic() - last_change > stall_s:
            return True


def _exit_of(code: int | None, culprit: int | None, log: str, killed_for_memory: bool) -> Exit:
    if code == 0:
        return Exit(Ending.FINISHED)
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        reason = f"ended by signal {-code} ({name})"
    else:
        last_words = log.strip().rpartition("\n")[2]
        reason = f"ended with exit code {code}" + (f": {last_words}" if last_words else "")
    said_so = "bad_alloc" in log or "out of memory" in log.lower()
    return Exit(Ending.CRASHED, culprit, reason, log, killed_for_memory or said_so)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep the starting program's main module out of the workers, which would import it again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let an interrupt from the keyboard wait until the block has ended.

    A worker that is asked for by half leaves the fork server with a traceback on the terminal. Only
    the main thread gets interrupts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _worker_main(
    target: str,
    payload: object,
    connection: Connection,
    progress: Any,
    memory_bytes: int | None,
    log_path: str,
) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the watcher ends the sweep, and its workers
    if memory_bytes is not None:
        limit_address_space(memory_bytes)
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    function(payload, Channel(connection, progress))


def limit_address_space(extra_bytes: int) -> None:
    """Let this process take at most ``extra_bytes`` of address space beyond what it has now.

    An allocation beyond it fails in the process, instead of calling the system's killer.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    limit = pages * resource.getpagesize() + extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _out_of_memory_kills() -> int:
    """How often the kernel has killed for memory in this control group; 0 if unreadable."""
    events = Path("/sys/fs/cgroup/memory.events")
    try:
        fields = dict(line.split() for line in events.read_text().splitlines())
    except OSError:
        return 0
    return int(fields.get("oom_kill", 0))


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(line for line in text.splitlines() if not line.startswith("USDT:"))
