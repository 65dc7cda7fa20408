"""What is known about one (case, implementation, pass): the row, and its form in a shard.

A row is one JSON object on one line. Its fields are documented in results/README.md; a change of
their meaning raises ``SCHEMA_VERSION``. What could not be measured is null with a reason beside it,
never 0. Seconds and bytes everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from harness.attention import Case
from harness.errors import StoreError

SCHEMA_VERSION = 2


class Status(StrEnum):
    """What became of a planned (case, implementation) pair. Only ``ok`` rows are ever ranked."""

    OK = "ok"
    UNSUPPORTED = "unsupported"  # the implementation said so beforehand, with reasons
    INCORRECT = "incorrect"  # ran, and its output is wrong
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"  # the process died
    ERROR = "error"  # an exception


@dataclass(frozen=True)
class Samples:
    """Every timed call of one implementation in one pass; index i is a round in the order they ran.

    Compare two only over as many calls of each round as both have: a minimum over more calls is
    lower.

    Args:
        times_s: ``[round][call]`` seconds per call (a sample of K calls is divided by K).
        orders: Position of the implementation in each round's random order, from 0.
        calls_per_sample: K, the same for all implementations of the case.
    """

    times_s: tuple[tuple[float, ...], ...] = ()
    orders: tuple[int, ...] = ()
    calls_per_sample: int = 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row. Times are seconds, sizes bytes.

    Args:
        run_id: Name of the run's folder.
        options: The implementation's options, as configured.
        pass_index: Which fresh process of this case, from 0.
        process: Token of the process that measured; only rows that share it are paired by round.
        reasons: Why the status is not ``ok``, in sentences with values.
        is_baseline: Whether the others of this process are compared with this one.
        shadow: The baseline's samples under its second name; on the baseline's row only.
        first_call_s: The first call, with lazy set-up and compilation.
        host_call_s: CUDA only: from the host's call to the device's end, launches included.
        warmup_s: Time spent warming up after it.
        peak_alloc_bytes: Peak of allocator bytes in one call, above what was there before it.
        peak_rss_bytes: The same by resident memory.
        memory_method: How the two were measured, or why not.
        memory_details: What else the memory measurement found (residual, reserved, agreement).
        output_bytes: Size of the output within the peak.
        expected_alloc_bytes: The analytic expectation, where there is one.
        errors: Per output (``o``, ``q.grad`` ...) and measure, against float64.
        kernel: What really ran.
        mask_form: How it received the mask: ``none``, ``flag``, ``tensor``, ``flag+tensor`` or
            ``unknown``.
        reference_s: Seconds that the exact results of the case took, shared by all its rows.
        judging_s: Seconds of comparing its first and its last timed outputs with them.
        notes: Work beyond the kernel inside the timed call.
        flags: Findings of the guards that a reader must know.
        flagged_rounds: Indices of rounds that a guard flagged, by guard.
        canary_times_s: A fixed piece of work timed in each round.
        stop_reason: Why the rounds ended: ``precision``, ``verdict``, ``budget`` or ``rounds``.
        flop_count: Floating-point operations of the problem (unmasked pairs only).
        min_bytes: Bytes that any implementation must move.
        ceiling_flop_per_s: Rate of a large matrix product of the case's dtype on this machine.
        ceiling_bytes_per_s: Rate of a large copy on this machine, bytes read and written.
        environment_key: Hash of the environment that measured.
        started_at: UTC, ISO 8601.
        calls_s: Seconds inside its calls: first call, warm-up, priming and timed ones.
        wall_s: Wall time of the whole case in its process.
        repro: The command that repeats this cell.
        log: Tail of what the process printed, and the traceback where there is one.
    """

    run_id: str
    case: Case
    implementation: str
    pass_index: int
    status: Status
    reasons: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    implementation_version: str | None = None
    process: str = ""
    is_baseline: bool = False
    samples: Samples = Samples()
    shadow: Samples = Samples()
    first_call_s: float | None = None
    host_call_s: float | None = None
    warmup_s: float | None = None
    peak_alloc_bytes: int | None = None
    peak_rss_bytes: int | None = None
    memory_method: str | None = None
    memory_details: Mapping[str, Any] = field(default_factory=dict)
    output_bytes: int | None = None
    expected_alloc_bytes: int | None = None
    errors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kernel: str | None = None
    mask_form: str | None = None
    reference_s: float | None = None
    judging_s: float | None = None
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    flagged_rounds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    canary_times_s: tuple[float, ...] = ()
    stop_reason: str | None = None
    flop_count: int | None = None
    min_bytes: int | None = None
    ceiling_flop_per_s: float | None = None
    ceiling_bytes_per_s: float | None = None
    environment_key: str = ""
    started_at: str = ""
    calls_s: float | None = None
    wall_s: float | None = None
    repro: str = ""
    log: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def pair(self) -> tuple[str, str, int]:
        """What a run holds exactly once: case key, implementation, pass index."""
        return self.case.key, self.implementation, self.pass_index


def to_json(row: Row) -> str:
    """One line of JSON without its line end; NaN and infinities become null, for JSON has none."""
    flat = {f.name: getattr(row, f.name) for f in fields(row)}
    flat |= {"case": row.case.to_dict(), "case_key": row.case.key, "case_id": row.case.id}
    flat |= {"samples": asdict(row.samples), "shadow": asdict(row.shadow)}
    return json.dumps(_finite(flat), allow_nan=False, separators=(",", ":"))


def from_json(line: str) -> Row:
    """Inverse of ``to_json``.

    Raises:
        StoreError: the line is no row, or of a newer schema.
    """
    try:
        flat = json.loads(line)
        version = flat["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"not a row: {line[:80]!r} ({error})") from None
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"row of schema version {version}; this mha-bench reads up to {SCHEMA_VERSION}: upgrade"
        )
    known = {f.name for f in fields(Row)}
    values = {name: _tupled(value) for name, value in flat.items() if name in known}
    values |= {
        "case": Case.from_dict(flat["case"]),
        "status": Status(flat["status"]),
        "samples": _samples(flat["samples"]),
        "shadow": _samples(flat["shadow"]),
    }
    return Row(**values)


def failed(row: Row, status: Status, *reasons: str, log: str = "") -> Row:
    """The same pair with another end: what was measured stays, nothing counts as ``ok``."""
    return replace(row, status=status, reasons=(*row.reasons, *reasons), log=log or row.log)


def _samples(flat: Mapping[str, Any]) -> Samples:
    return Samples(**{name: _tupled(value) for name, value in flat.items()})


def _tupled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _tupled(v) for name, v in value.items()}
    return tuple(_tupled(v) for v in value) if isinstance(value, list) else value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
