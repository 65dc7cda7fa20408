"""Running a plan: every planned pair becomes exactly one row per pass, whatever happens.

::

    environment, ceilings, claims      asked once, each in a worker
    for each pass, for each case in random order
        rows of the unsupported        at once
        measure_cell                   in fresh workers
        rows                           flushed to the run's shard

Imports no torch: tensors live in the workers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from harness.attention import Case
from harness.cells import (
    Cell,
    Claims,
    Site,
    ask_ceilings,
    ask_claims,
    ask_environment,
    measure_cell,
    row_by_claim,
)
from harness.planning.config import RunConfig
from harness.planning.plan import Plan
from harness.rows import Row
from harness.settings import ImplementationSpec, MeasureSettings
from harness.store import ShardWriter, read_rows, write_environment, write_left_out
from harness.worker import ForkServer, Limits

_MIN_BUDGET_S = 0.3


class Observer(Protocol):
    """Who watches a sweep: the command line's progress bar, or a test."""

    def on_case_start(
        self, case: Case, pass_index: int, done: int, total: int, eta_s: float | None
    ) -> None:
        """A case begins; ``done`` of ``total`` (case, pass) cells are over."""
        ...

    def on_row(self, row: Row) -> None:
        """A row has been stored."""
        ...

    def on_message(self, text: str) -> None:
        """Something that the user should know."""
        ...


@dataclass(frozen=True)
class _Sweep:
    """What the steps of one sweep share."""

    plan: Plan
    config: RunConfig
    site: Site
    shard: ShardWriter
    observer: Observer
    claims: Claims


def run_sweep(plan: Plan, run: Path, config: RunConfig, observer: Observer) -> None:
    """Measure what the run does not hold yet; rows go to a new shard of ``run``.

    Raises:
        StoreError: the run can't be read or written.
        WorkerError: no worker process can be started.
    """
    done = {row.pair for row in read_rows(run)} if any(run.glob("rows-*.jsonl")) else set()
    server = ForkServer()
    observer.on_message("starting the workers")
    environment = ask_environment(server)
    observer.on_message("measuring what this machine can do at most")
    ceilings = ask_ceilings(server, plan.cases)
    write_environment(run, {**environment, "ceilings": ceilings.to_dict()})
    write_left_out(run, [(point.axes, point.reason) for point in plan.invalid])
    claims = ask_claims(server, plan.implementations, plan.cases)
    limits = Limits(config.measure.call_timeout_s, config.memory_limit_bytes)
    key = str(environment.get("key", ""))
    site = Site(server, limits, run.name, key, config.baseline, ceilings, config.repro_command)
    with ShardWriter(run) as shard:
        _run_cells(_Sweep(plan, config, site, shard, observer, claims), done)


def _run_cells(sweep: _Sweep, done: set[tuple[str, str, int]]) -> None:
    plan, started = sweep.plan, time.monotonic()
    cells = [
        (pass_index, case)
        for pass_index in range(plan.passes)
        for case in _shuffled(plan.cases, pass_index)
    ]
    for index, (pass_index, case) in enumerate(cells):
        missing = tuple(
            spec for spec in plan.implementations if (case.key, spec.name, pass_index) not in done
        )
        if not missing:
            continue
        elapsed_s = time.monotonic() - started
        eta_s = elapsed_s / index * (len(cells) - index) if index else None
        sweep.observer.on_case_start(case, pass_index, index, len(cells), eta_s)
        measure = _within_budget(sweep.config, elapsed_s, index, len(cells))
        _run_cell(sweep, case, pass_index, missing, measure)


def _shuffled(cases: Sequence[Case], pass_index: int) -> list[Case]:
    """Cases of a pass in an order that is random and the same when the sweep is resumed."""
    seed = [pass_index, *(int(case.key, 16) % 2**32 for case in cases[:1])]
    order = np.random.default_rng(seed).permutation(len(cases))
    return [cases[int(index)] for index in order]


def _within_budget(config: RunConfig, elapsed_s: float, index: int, total: int) -> MeasureSettings:
    """The settings, with less time for rounds where the sweep's budget would not last."""
    if config.budget_s is None:
        return config.measure
    share_s = max(0.0, config.budget_s - elapsed_s) / (total - index)
    budget_s = min(config.measure.budget_s, max(_MIN_BUDGET_S, share_s / 2))
    return replace(config.measure, budget_s=budget_s)


def _run_cell(
    sweep: _Sweep,
    case: Case,
    pass_index: int,
    specs: tuple[ImplementationSpec, ...],
    measure: MeasureSettings,
) -> None:
    """One case and pass: store one row for each of ``specs``."""
    cell = Cell(case, pass_index)
    to_measure = []
    for spec in specs:
        row = row_by_claim(sweep.site, cell, spec, sweep.claims)
        if row is None:
            to_measure.append(spec)
        else:
            _store(sweep, row)
    rows = measure_cell(sweep.site, cell, tuple(to_measure), measure) if to_measure else {}
    for spec in to_measure:
        _store(sweep, rows[spec.name])


def _store(sweep: _Sweep, row: Row) -> None:
    sweep.shard.append(row)
    sweep.observer.on_row(row)
