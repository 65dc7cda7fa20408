"""Stored synthetic runs that reports are made of in tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.attention import Case
from harness.rows import Row, Status
from harness.store import write_left_out
from tests.synthetic import Truth, draw_rows, make_case, store_run

ENVIRONMENT = {
    "key": "synthetic",
    "hardware": {
        "cpu": {"model": "Imaginary 9000", "cores_usable": 2, "cores_logical": 4},
        "gpus": [],
        "memory_bytes": 8 * 2**30,
    },
    "software": {"packages": {"torch": "2.13.0"}, "system": "Linux", "kernel": "6.1"},
}
LENGTHS = (128, 256, 512, 1024, 2048)
_LAWS = {
    "naive": (2e-5, 1e-11, 1.2e-10),
    "sdpa": (1.2e-4, 1.5e-10, 4e-11),
    "sdpa_flash": (1.21e-4, 1.51e-10, 4.01e-11),
    "chunked": (3e-4, 1e-10, 9e-11),
}


def seconds_of(name: str, case: Case) -> float:
    fixed, linear, square = _LAWS[name]
    c = case.config
    return fixed + linear * c.seq_len * c.hidden_size + square * c.seq_len**2 * c.num_heads


def rich_rows(seed: int = 0, passes: int = 2) -> list[Row]:
    """Two hidden sizes, two head counts, five lengths; one crossover a line, a tie, failures."""
    cases = [
        make_case(n, hidden_size=h, num_heads=k, threads=2)
        for n in LENGTHS
        for h in (768, 2048)
        for k in (8, 16)
    ]
    seconds = {name: {c.id: seconds_of(name, c) for c in cases} for name in _LAWS}
    statuses = {"xformers": Status.UNSUPPORTED, "broken": Status.CRASHED}
    truth = Truth({**seconds, "xformers": {}, "broken": {}}, passes=passes, statuses=statuses)
    return [_with_memory_and_error(row) for row in draw_rows(cases, truth, seed)]


def _with_memory_and_error(row: Row) -> Row:
    if row.status is not Status.OK:
        return replace(row, reasons=(f"<{row.implementation}> | can't *do* this",))
    c = row.case.config
    scores = c.seq_len**2 * c.num_heads * 4 if row.implementation == "naive" else 0
    error = {"naive": 2.2, "chunked": 3.1}.get(row.implementation, 1.5)
    return replace(
        row,
        peak_alloc_bytes=c.seq_len * c.hidden_size * 4 + scores,
        errors={"o": {"max_abs": 1e-6, "scaled_u": error, "bound_share": 0.1}},
    )


def rich_run(results_dir: Path, name: str = "rich", seed: int = 0) -> Path:
    run = store_run(results_dir, rich_rows(seed), name, ENVIRONMENT)
    write_left_out(run, [({"hidden_size": 768, "num_heads": 10}, "768 is no multiple of 10")])
    return run
