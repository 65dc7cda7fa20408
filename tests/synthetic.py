"""Runs with a known truth, for tests of everything that reads rows: no clock, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from harness.attention import Case
from harness.rows import Row, Samples, Status
from harness.store import ShardWriter, create_run, write_config, write_environment

NOISE = 0.02


def make_case(
    seq_len: int = 128, hidden_size: int = 64, num_heads: int = 4, **axes: object
) -> Case:
    sizes = {"seq_len": seq_len, "hidden_size": hidden_size, "num_heads": num_heads}
    return Case.from_dict({**sizes, **axes})


def make_row(
    case: Case | None = None,
    implementation: str = "naive",
    status: Status = Status.OK,
    pass_index: int = 0,
    **fields: object,
) -> Row:
    """A row without samples unless given; for tests of storage and tables."""
    given = {"run_id": "run", "process": f"p{pass_index}", **fields}
    return Row(
        case=case or make_case(),
        implementation=implementation,
        pass_index=pass_index,
        status=status,
        **given,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Truth:
    """What a synthetic run is drawn from.

    Args:
        seconds: True seconds per call, by implementation and case id.
        noise: Standard deviation of the log of one call's time, as a share.
        process_spread: Standard deviation of a process's own log factor, per implementation.
        statuses: Status other than ``ok`` by implementation (all its cases).
    """

    seconds: Mapping[str, Mapping[str, float]]
    noise: float = NOISE
    process_spread: float = 0.0
    num_rounds: int = 30
    burst: int = 3
    passes: int = 1
    statuses: Mapping[str, Status] = field(default_factory=dict)


def draw_rows(cases: Sequence[Case], truth: Truth, seed: int = 0, run_id: str = "run") -> list[Row]:
    """Rows of every implementation in ``truth``; the first one is the baseline, with a shadow."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for pass_index in range(truth.passes):
        for case in cases:
            rows += _draw_process(rng, case, truth, pass_index, run_id)
    return rows


def _draw_process(
    rng: np.random.Generator, case: Case, truth: Truth, pass_index: int, run_id: str
) -> list[Row]:
    # What a whole round shares (clock speed, a neighbour's load) cancels in the pairs.
    weather = 0.1 * rng.standard_normal(truth.num_rounds)
    rows = []
    for position, (name, by_case) in enumerate(truth.seconds.items()):
        status = truth.statuses.get(name, Status.OK)
        row = make_row(
            case,
            name,
            status,
            pass_index,
            run_id=run_id,
            process=f"{case.key}/{pass_index}",
            is_baseline=position == 0,
            started_at=f"2025-01-01T00:00:{pass_index:02d}Z",
            repro=f"mha-bench sweep {case.id} {name}",
        )
        if status is Status.OK:
            row = _measured(rng, row, by_case[case.id], truth, weather)
        else:
            row = replace(row, reasons=(f"{status.value} on purpose",))
        rows.append(row)
    return rows


def _measured(
    rng: np.random.Generator, row: Row, seconds: float, truth: Truth, weather: np.ndarray
) -> Row:
    seconds = seconds * float(np.exp(truth.process_spread * rng.standard_normal()))
    length = row.case.config.seq_len
    return replace(
        row,
        samples=draw_samples(rng, seconds, truth, weather),
        shadow=draw_samples(rng, seconds, truth, weather) if row.is_baseline else Samples(),
        first_call_s=3 * seconds,
        peak_alloc_bytes=length * 1024,
        memory_method="synthetic",
        flop_count=length**2 * 256,
        min_bytes=length * 512,
        ceiling_flop_per_s=1e12,
        ceiling_bytes_per_s=1e10,
        kernel=row.implementation,
        errors={"o": {"max_abs": 1e-6, "rms_relative": 1e-7, "scaled_u": 1.5, "bound_share": 0.1}},
        stop_reason="rounds",
    )


def draw_samples(
    rng: np.random.Generator, seconds: float, truth: Truth, weather: np.ndarray
) -> Samples:
    noise = truth.noise * rng.standard_normal((truth.num_rounds, truth.burst))
    times = seconds * np.exp(noise + weather[:, None])
    return Samples(
        times_s=tuple(tuple(float(t) for t in calls) for calls in times),
        orders=tuple(int(o) for o in rng.integers(0, len(truth.seconds) + 1, truth.num_rounds)),
    )


def store_run(
    results_dir: Path,
    rows: Sequence[Row],
    name: str = "run",
    environment: Mapping[str, object] | None = None,
) -> Path:
    run = create_run(results_dir, name)
    write_environment(run, environment or {"key": "synthetic", "hardware": {"cpu": "synthetic"}})
    write_config(run, "measure:\n  margin: 0.03\n")
    with ShardWriter(run) as shard:
        for row in rows:
            shard.append(row)
    return run
