"""What travels to a worker: plain data, importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from harness import cost
from harness.attention import Case
from harness.rows import Row, Status
from harness.settings import ImplementationSpec, MeasureSettings


@dataclass(frozen=True)
class Ceilings:
    """Rates that no implementation can exceed, measured on this machine.

    Args:
        flop_per_s: Of a large matrix product, by (device, dtype, threads).
        bytes_per_s: Of a large copy, read and written, by (device, threads).
    """

    flop_per_s: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    bytes_per_s: Mapping[tuple[str, int], float] = field(default_factory=dict)

    def of(self, case: Case) -> tuple[float | None, float | None]:
        """FLOP/s and bytes/s for a case; None where they were not measured."""
        return (
            self.flop_per_s.get((case.device, case.config.dtype.value, case.threads)),
            self.bytes_per_s.get((case.device, case.threads)),
        )

    def fastest_product(self, case: Case) -> float | None:
        """FLOP/s of the fastest product of any dtype: wider ones can be made of narrower ones."""
        rates = (
            rate
            for (device, _, threads), rate in self.flop_per_s.items()
            if (device, threads) == (case.device, case.threads)
        )
        return max(rates, default=None)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """For the run's environment file."""
        return {
            "flop_per_s": {"/".join(map(str, key)): v for key, v in self.flop_per_s.items()},
            "bytes_per_s": {"/".join(map(str, key)): v for key, v in self.bytes_per_s.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Job:
    """One case to measure in one process.

    Args:
        specs: The implementations; messages and ``Channel.enter`` name them by index.
        baseline: Name of the implementation that the others are compared with; where it can't be
            measured, the first that can takes its place.
        process: Token of the process, for the rows.
        ceilings: What this machine can do at most.
        repro: Per implementation, the command that repeats its cell.
    """

    run_id: str
    case: Case
    specs: tuple[ImplementationSpec, ...]
    baseline: str
    pass_index: int
    measure: MeasureSettings
    process: str
    environment_key: str = ""
    ceilings: Ceilings = Ceilings()
    repro: Mapping[str, str] = field(default_factory=dict)


def blank_row(job: Job, spec: ImplementationSpec) -> Row:
    """The row of a pair before anything is known of it; its status says error until then."""
    flop_per_s, bytes_per_s = job.ceilings.of(job.case)
    return Row(
        run_id=job.run_id,
        case=job.case,
        implementation=spec.name,
        options=spec.options,
        pass_index=job.pass_index,
        status=Status.ERROR,
        process=job.process,
        flop_count=cost.flop_count(job.case),
        min_bytes=cost.min_bytes(job.case),
        ceiling_flop_per_s=flop_per_s,
        ceiling_bytes_per_s=bytes_per_s,
        environment_key=job.environment_key,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        repro=job.repro.get(spec.name, ""),
    )


@dataclass(frozen=True)
class ReasonsJob:
    """Questions to the implementations' ``unsupported_reasons``, all in one process."""

    specs: tuple[ImplementationSpec, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class RowMessage:
    """From a worker: the row of ``Job.specs[index]`` as far as it is known.

    Args:
        is_final: False while the pair is still being measured; should the worker die, the row
            tells what was known.
    """

    index: int
    row: Row
    is_final: bool


@dataclass(frozen=True)
class MemoryMessage:
    """From a worker: the memory fields of the row of ``Job.specs[index]``."""

    index: int
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class ReasonsMessage:
    """From a worker: why ``specs[index]`` can't do each of the cases that it can't do.

    Args:
        by_case_key: Reasons by case key; cases left out are supported.
        problem: Why the implementation can't be used at all; with it the map is empty.
        status: What that makes of its rows.
    """

    index: int
    by_case_key: Mapping[str, tuple[str, ...]]
    problem: str = ""
    status: str = "error"
    log: str = ""


@dataclass(frozen=True)
class ProbeJob:
    """Pairs to be called once each, all in one process."""

    pairs: tuple[tuple[ImplementationSpec, Case], ...]


@dataclass(frozen=True)
class ProbeMessage:
    """From a worker: what is wrong with the next pair's call; empty where it is right."""

    problem: str
