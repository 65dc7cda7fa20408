"""Runs on disk: a folder of append-only shards, one JSON line per row, read back as one table.

::

    results/20250131-142501-7f3a/
    ├── config.yaml          the configuration as composed
    ├── environment.json     hardware, software, settings
    ├── rows-<writer>.jsonl  one shard per writing process
    └── left-out-<writer>.json  points of the plan that can't be measured, with their reason

A line is appended in one write and forced to disk, so a killed sweep loses at most the case in
hand. Whoever resumes a run writes a shard of its own and never touches another's.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from harness.errors import MhaBenchError, StoreError
from harness.rows import Row, from_json, to_json

if TYPE_CHECKING:
    import pandas as pd

CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
_SHARDS = "rows-*.jsonl"
_LEFT_OUT = "left-out-*.json"


def create_run(results_dir: Path, name: str | None = None) -> Path:
    """A new, empty folder for one run, made for this caller alone.

    Args:
        results_dir: Folder of the runs; made when missing.
        name: Name of the run; a time stamp with a random suffix when left out.

    Raises:
        StoreError: the folder can't be made, or a run of that name is there already.
    """
    run = Path(results_dir) / (name or _unique_name())
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        run.mkdir()
    except FileExistsError:
        raise StoreError(
            f"results_dir: a run named {run.name!r} is already in {run.parent}"
        ) from None
    except OSError as error:
        raise StoreError(f"results_dir: can't make {run} ({error.strerror})") from None
    _require_writable(run)
    return run


def _require_writable(run: Path) -> None:
    """A folder can be made and yet be unwritable: find out before anything is measured."""
    if not os.access(run, os.W_OK | os.X_OK):
        raise StoreError(f"results_dir: {run} is not writable")


def _unique_name() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


class ShardWriter:
    """Appends rows to a shard of its own in ``run``; a context manager.

    Raises:
        StoreError: the shard can't be made or written, for instance on a full disk; a line that
            was written in part is taken back.
    """

    def __init__(self, run: Path) -> None:
        self.path = Path(run) / f"rows-{_unique_name()}-{os.getpid()}.jsonl"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        try:
            self._file: int | None = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise StoreError(f"can't write to run {run} ({error.strerror})") from None

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, row: Row) -> None:
        """Write one row as one line; it is on disk when this returns."""
        if self._file is None:
            raise StoreError(f"{self.path.name} is closed")
        line = to_json(row).encode() + b"\n"
        size = os.fstat(self._file).st_size
        try:
            _write_whole(self._file, line)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size)
            raise StoreError(f"can't write to {self.path} ({error.strerror})") from None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write_whole(file: int, line: bytes) -> None:
    """One system call where the disk allows it; a full one may take only a part first."""
    while line:
        line = line[os.write(file, line) :]


def read_rows(run: Path) -> list[Row]:
    """All rows of a run, one per pair of (case, implementation, pass).

    A torn last line of a shard is dropped. Of several rows of one pair the last written wins.

    Raises:
        StoreError: ``run`` is no run, or a line within a shard is damaged.
    """
    run = _require_run(Path(run))
    latest: dict[tuple[str, str, int], tuple[str, Row]] = {}
    for shard in sorted(run.glob(_SHARDS)):
        # Within a shard the order of the lines decides, between shards the time of the start.
        for pair, row in {row.pair: row for row in _shard_rows(shard)}.items():
            if pair not in latest or row.started_at >= latest[pair][0]:
                latest[pair] = (row.started_at, row)
    return [row for _, row in latest.values()]


def _require_run(run: Path) -> Path:
    if not run.is_dir():
        raise StoreError(f"no run at {run}")
    known = (CONFIG_FILE, ENVIRONMENT_FILE)
    if not any((run / name).exists() for name in known) and not any(run.glob(_SHARDS)):
        raise StoreError(f"{run} is no run: it holds no rows, no {CONFIG_FILE}")
    return run


def _shard_rows(shard: Path) -> Iterator[Row]:
    try:
        lines = shard.read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(f"can't read {shard} ({error.strerror})") from None
    # What follows the last line end is a torn line, or nothing.
    whole = lines[:-1]
    for number, line in enumerate(whole, start=1):
        if not line.strip():
            continue
        try:
            yield from_json(line.decode())
        except (MhaBenchError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{shard}, line {number}: {error}") from None


def load(run: Path | str) -> pd.DataFrame:
    """A run as a DataFrame: one line per (case, implementation, pass), columns of fixed types.

    results/README.md documents every column. Also reads a run that is still going on or was killed.

    Raises:
        StoreError: ``run`` is no run, or a shard is damaged.
    """
    from harness.columns import to_frame

    return to_frame(read_rows(Path(run)))


def write_environment(run: Path, environment: Mapping[str, Any]) -> None:
    """Store ``environment.describe()`` beside the rows."""
    text = json.dumps(environment, indent=2, sort_keys=True, allow_nan=False)
    _write_file(Path(run) / ENVIRONMENT_FILE, text + "\n")


def read_environment(run: Path) -> dict[str, Any]:
    """What ``write_environment`` stored; empty when the run was killed before that."""
    path = Path(run) / ENVIRONMENT_FILE
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise StoreError(f"can't read {path} ({error})") from None


def write_config(run: Path, text: str) -> None:
    """Store the composed configuration as YAML."""
    _write_file(Path(run) / CONFIG_FILE, text)


def write_left_out(run: Path, points: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    """Store the points (their axes, and the reason) that a plan leaves out; nothing when none."""
    if points:
        listed = [{"axes": dict(axes), "reason": reason} for axes, reason in points]
        path = Path(run) / f"left-out-{_unique_name()}-{os.getpid()}.json"
        _write_file(path, json.dumps(listed, indent=1, default=str) + "\n")


def read_left_out(run: Path) -> list[tuple[dict[str, Any], str]]:
    """What ``write_left_out`` stored, each point once though a run was planned more than once."""
    found: dict[str, tuple[dict[str, Any], str]] = {}
    for path in sorted(Path(run).glob(_LEFT_OUT)):
        try:
            listed = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise StoreError(f"can't read {path} ({error})") from None
        for point in listed:
            canonical = json.dumps(point, sort_keys=True)
            found[canonical] = (point["axes"], point["reason"])
    return [found[canonical] for canonical in sorted(found)]


def _write_file(path: Path, text: str) -> None:
    """Written aside and moved into place, so that no reader sees half a file."""
    aside = path.with_name(f".{path.name}-{secrets.token_hex(3)}")
    try:
        aside.write_text(text)
        aside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise StoreError(f"can't write {path} ({error.strerror})") from None
