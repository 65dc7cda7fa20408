"""One case in one pass: workers are started for it, and each pair gets its row whatever they do.

A worker that dies or hangs takes only the implementation in hand with it; the others of the case
start again in another. Memory is measured in a further worker, in the first pass only.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.attention import Case
from harness.jobs import (
    Ceilings,
    Job,
    MemoryMessage,
    ReasonsJob,
    ReasonsMessage,
    RowMessage,
    blank_row,
)
from harness.rows import Row, Status, failed
from harness.settings import ImplementationSpec, MeasureSettings
from harness.worker import Ending, Exit, ForkServer, Limits

_PREPARATION_STALL_S = 600.0  # importing a package or compiling may take minutes
_ONLY_FIRST_PASS = "not measured (measured in pass 0)"


@dataclass(frozen=True)
class Claims:
    """The implementations' own answers.

    Args:
        unsupported: Reasons by (implementation, case key).
        problems: Status, reason and log of implementations that can't be used at all, by name.
    """

    unsupported: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    problems: Mapping[str, tuple[Status, str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """Where cells are measured: what all of a sweep share.

    Args:
        repro: Gives the command that repeats a case with one implementation.
    """

    server: ForkServer
    limits: Limits
    run_id: str
    environment_key: str
    baseline: str
    ceilings: Ceilings
    repro: Callable[[Case, str], str]


@dataclass(frozen=True)
class Cell:
    """A case in a pass."""

    case: Case
    pass_index: int


def row_by_claim(site: Site, cell: Cell, spec: ImplementationSpec, claims: Claims) -> Row | None:
    """The row of a pair that need not be tried; None: it must be measured."""
    status, log = Status.UNSUPPORTED, ""
    reasons = claims.unsupported.get((spec.name, cell.case.key), ())
    if spec.name in claims.problems:
        status, reason, log = claims.problems[spec.name]
        reasons = (reason,)
    if not reasons:
        return None
    blank = blank_row(_job(site, cell, (spec,), MeasureSettings()), spec)
    return failed(blank, status, *reasons, log=log)


def measure_cell(
    site: Site, cell: Cell, specs: tuple[ImplementationSpec, ...], measure: MeasureSettings
) -> dict[str, Row]:
    """Final rows by implementation name, one for each of ``specs``."""
    job = _job(site, cell, specs, measure)
    return _with_memory(site, job, _measure_all(site, job))


def _job(
    site: Site,
    cell: Cell,
    specs: tuple[ImplementationSpec, ...],
    measure: MeasureSettings,
) -> Job:
    return Job(
        run_id=site.run_id,
        case=cell.case,
        specs=specs,
        baseline=site.baseline,
        pass_index=cell.pass_index,
        measure=measure,
        process=secrets.token_hex(6),
        environment_key=site.environment_key,
        ceilings=site.ceilings,
        repro={spec.name: site.repro(cell.case, spec.name) for spec in specs},
    )


def _measure_all(site: Site, job: Job) -> dict[str, Row]:
    """Final rows by implementation; starts again without whoever brought a worker down."""
    final: dict[str, Row] = {}
    remaining = job.specs
    while remaining:
        attempt = replace(job, specs=remaining, process=secrets.token_hex(6))
        final |= _one_worker(site, attempt)
        left = tuple(spec for spec in remaining if spec.name not in final)
        assert len(left) < len(remaining), "each worker ends at least one row"
        remaining = left
    return final


def _one_worker(site: Site, job: Job) -> dict[str, Row]:
    """The rows that one worker ended, its culprit's included."""
    final: dict[str, Row] = {}
    partial: dict[str, Row] = {}
    for message in site.server.run("harness.measuring.bench:measure_case", job, site.limits):
        if isinstance(message, RowMessage):
            known = final if message.is_final else partial
            known[job.specs[message.index].name] = message.row
        elif isinstance(message, Exit):
            final |= _rows_of_dead(site, job, message, final, partial)
    return final


def _rows_of_dead(
    site: Site,
    job: Job,
    exit_: Exit,
    final: Mapping[str, Row],
    partial: Mapping[str, Row],
) -> dict[str, Row]:
    """Rows of those on whom a worker's end is blamed: the one in hand, or all when none was."""
    open_names = [spec.name for spec in job.specs if spec.name not in final]
    if exit_.ending is Ending.FINISHED and not open_names:
        return {}
    culprit = job.specs[exit_.culprit].name if exit_.culprit is not None else None
    blamed = [culprit] if culprit in open_names else open_names
    while_doing = "" if culprit in open_names else " (while the inputs or the reference were made)"
    status = _status_of(exit_)
    reason = f"{exit_.reason}{_limit_of(exit_)}{while_doing}"
    rows = {}
    for spec in job.specs:
        if spec.name in blamed:
            blank = blank_row(job, spec)
            row = replace(partial.get(spec.name, blank), reasons=(), process=job.process)
            rows[spec.name] = failed(row, status, reason, log=exit_.log)
    return rows


def _limit_of(exit_: Exit) -> str:
    """The setting that ended it, where one did."""
    return " (measure.call_timeout_s; compiling counts)" if exit_.ending is Ending.TIMEOUT else ""


def _status_of(exit_: Exit) -> Status:
    if exit_.ending is Ending.TIMEOUT:
        return Status.TIMEOUT
    if exit_.ran_out_of_memory:
        return Status.OUT_OF_MEMORY
    return Status.CRASHED


def _with_memory(site: Site, job: Job, rows: dict[str, Row]) -> dict[str, Row]:
    """The rows with their memory fields, measured in a process of its own in the first pass."""
    right = tuple(spec for spec in job.specs if rows[spec.name].status is Status.OK)
    if job.pass_index > 0:
        return {name: _without_memory(row, _ONLY_FIRST_PASS) for name, row in rows.items()}
    rows = dict(rows)
    while right:
        answered = 0
        for message in site.server.run(
            "harness.measuring.footprint:measure_memory", replace(job, specs=right), site.limits
        ):
            if isinstance(message, MemoryMessage):
                name = right[message.index].name
                rows[name] = replace(rows[name], **message.fields)
                answered = message.index + 1
            elif isinstance(message, Exit) and answered < len(right):
                name = right[answered].name
                problem = f"not measured ({message.reason or message.ending})"
                rows[name] = _without_memory(rows[name], problem)
        right = right[answered + 1 :]
    return rows


def _without_memory(row: Row, method: str) -> Row:
    return replace(row, memory_method=method) if row.status is Status.OK else row


def ask_environment(server: ForkServer) -> dict[str, Any]:
    """``environment.describe()`` of a worker; where that dies, how."""
    found: dict[str, Any] = {}
    limits = Limits(_PREPARATION_STALL_S)
    for message in server.run("harness.environment:send_description", None, limits):
        if isinstance(message, dict):
            found = message
        elif isinstance(message, Exit) and message.ending is not Ending.FINISHED:
            found = {"key": "", "problem": f"{message.reason}\n{message.log}"}
    return found


def ask_ceilings(server: ForkServer, cases: Sequence[Case]) -> Ceilings:
    """The machine's ceilings for these cases; empty where they can't be measured."""
    limits = Limits(_PREPARATION_STALL_S)
    for message in server.run("harness.measuring.ceilings:send_ceilings", tuple(cases), limits):
        if isinstance(message, Ceilings):
            return message
    return Ceilings()


def ask_claims(
    server: ForkServer, specs: Sequence[ImplementationSpec], cases: Sequence[Case]
) -> Claims:
    """What every implementation says about every case; one that breaks a worker is a problem."""
    unsupported: dict[tuple[str, str], tuple[str, ...]] = {}
    problems: dict[str, tuple[Status, str, str]] = {}
    remaining = tuple(specs)
    while remaining:
        answered = 0
        job = ReasonsJob(remaining, tuple(cases))
        limits = Limits(_PREPARATION_STALL_S)
        for message in server.run("harness.measuring.claims:find_reasons", job, limits):
            if isinstance(message, ReasonsMessage):
                name = remaining[message.index].name
                answered = message.index + 1
                for key, reasons in message.by_case_key.items():
                    unsupported[name, key] = reasons
                if message.problem:
                    problems[name] = (Status(message.status), message.problem, message.log)
            elif isinstance(message, Exit) and answered < len(remaining):
                name = remaining[answered].name
                problems[name] = (_status_of(message), message.reason, message.log)
        remaining = remaining[answered + 1 :]
    return Claims(unsupported, problems)
