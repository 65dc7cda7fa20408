"""The columns of the typed DataFrame: one line per row of a run, every name, type and meaning.

``COLUMNS`` is the contract that results/README.md documents and a test pins. Types are fixed and
nullable whatever the rows hold, so that a run of failures has the same columns as a run without
any. Text is never missing: an absent group key is the string ``none``, an absent text is empty,
for pandas drops missing keys from groups and pivots. Seconds and bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.mask import Mask
from harness.row_figures import (
    burst_median_s,
    call_times_s,
    ceiling_binds,
    ceiling_share,
    lse_error,
    main_error,
    median_s,
    percentile_95_s,
    rate,
    text,
    worst_error,
)
from harness.rows import Row

if TYPE_CHECKING:
    import pandas as pd

ERROR_MEASURES = ("max_abs", "rms_relative", "ratio_to_naive", "scaled_u", "bound_share")


@dataclass(frozen=True)
class Column:
    """One column: its name, pandas type (``text`` stands for strings), meaning, and source."""

    name: str
    kind: str
    meaning: str
    value: Callable[[Row], Any]


def _axis(name: str) -> Callable[[Row], Any]:
    def value(row: Row) -> Any:
        holder = row.case if hasattr(row.case, name) else row.case.config
        found = getattr(holder, name)
        return str(found) if isinstance(found, (str, Mask)) else found

    return value


def _axes() -> Iterable[Column]:
    axes = {
        "batch_size": ("Int64", "sequences in one call"),
        "hidden_size": ("Int64", "width of the model"),
        "num_heads": ("Int64", "query heads"),
        "num_kv_heads": ("Int64", "key/value heads"),
        "head_dim": ("Int64", "width of one head"),
        "seq_len": ("Int64", "queries"),
        "kv_seq_len": ("Int64", "keys"),
        "scale": ("Float64", "factor on the scores"),
        "dtype": ("text", "element type of inputs and output"),
        "mask": ("text", "which pairs attend; `none` when all do"),
        "dropout_p": ("Float64", "probability of dropping a weight"),
        "scope": ("text", "`attention` or `layer`"),
        "mode": ("text", "what one timed call does"),
        "device": ("text", "where it ran"),
        "threads": ("Int64", "CPU threads of every implementation"),
        "inputs": ("text", "distribution of the inputs"),
        "cache": ("text", "`warm` or `cold`"),
        "allocator": ("text", "`reuse` or `system`"),
        "seed": ("Int64", "seed of inputs, masks, order and dropout"),
    }
    for name, (kind, meaning) in axes.items():
        yield Column(name, kind, f"axis: {meaning}", _axis(name))


def _errors() -> Iterable[Column]:
    meanings = {
        "max_abs": "largest absolute error against float64",
        "rms_relative": "Frobenius norm of the error over that of the reference",
        "ratio_to_naive": "maximum error over that of naive attention in the same dtype",
        "scaled_u": "largest error over (P|V|), in unit roundoffs of the dtype",
        "bound_share": "largest error over its a-priori bound; above 1 is incorrect",
    }
    for m, meaning in meanings.items():
        yield Column(f"o_{m}", "Float64", f"{meaning}; output", _measure(main_error, m))
    for m, meaning in meanings.items():
        about = f"{meaning}; log-sum-exp, where one is offered"
        yield Column(f"lse_{m}", "Float64", about, _measure(lse_error, m))
    for m, meaning in meanings.items():
        about = f"{meaning}; worst of output and gradients"
        yield Column(f"worst_{m}", "Float64", about, _measure(worst_error, m))


def _measure(
    find: Callable[[Row, str], float | None], measure: str
) -> Callable[[Row], float | None]:
    return lambda row: find(row, measure)


_IDENTITY = (
    Column("run_id", "text", "name of the run's folder", lambda row: text(row.run_id)),
    Column("case_key", "text", "stable hash of all axes", lambda row: row.case.key),
    Column("case_id", "text", "readable name of the case", lambda row: row.case.id),
    Column("implementation", "text", "name of the implementation", lambda row: row.implementation),
    Column("pass_index", "Int64", "which fresh process, from 0", lambda row: row.pass_index),
    Column("status", "text", "`ok`, or what went wrong", lambda row: row.status.value),
    Column("reasons", "text", "why it is not `ok`, joined by `; `", lambda r: "; ".join(r.reasons)),
)

_LATENCY = (
    Column(
        "median_s",
        "Float64",
        "seconds per call: median over rounds of the burst's minimum",
        median_s,
    ),
    Column(
        "burst_median_s",
        "Float64",
        "seconds per call: median over rounds of the burst's median",
        burst_median_s,
    ),
    Column("p95_s", "Float64", "95th percentile of all calls", percentile_95_s),
    Column(
        "min_s", "Float64", "fastest of all calls", lambda row: min(call_times_s(row), default=None)
    ),
    Column("first_call_s", "Float64", "first call, with set-up", lambda row: row.first_call_s),
    Column(
        "host_call_s",
        "Float64",
        "CUDA only: from the host's call to the device's end",
        lambda row: row.host_call_s,
    ),
    Column("warmup_s", "Float64", "warm-up after the first call", lambda row: row.warmup_s),
    Column("num_rounds", "Int64", "rounds measured", lambda row: len(row.samples.times_s)),
    Column("num_calls", "Int64", "calls measured", lambda row: len(call_times_s(row))),
    Column(
        "calls_per_sample",
        "Int64",
        "calls timed together because one is too quick",
        lambda row: row.samples.calls_per_sample,
    ),
    Column("stop_reason", "text", "why the rounds ended", lambda row: text(row.stop_reason)),
    Column(
        "flop_per_s",
        "Float64",
        "operations on unmasked pairs over median_s",
        lambda row: rate(row.flop_count, row),
    ),
    Column(
        "bytes_per_s",
        "Float64",
        "bytes that must move over median_s",
        lambda row: rate(row.min_bytes, row),
    ),
    Column("flop_count", "Int64", "operations of the problem", lambda row: row.flop_count),
    Column("min_bytes", "Int64", "bytes that any way must move", lambda row: row.min_bytes),
    Column(
        "ceiling_share",
        "Float64",
        "least time by the machine's measured ceilings over median_s",
        ceiling_share,
    ),
    Column("ceiling_binds", "text", "`compute` or `memory`: which ceiling", ceiling_binds),
)

_MEMORY = (
    Column(
        "peak_alloc_bytes",
        "Int64",
        "allocator peak of one call above its inputs",
        lambda row: row.peak_alloc_bytes,
    ),
    Column(
        "peak_rss_bytes", "Int64", "the same by resident memory", lambda row: row.peak_rss_bytes
    ),
    Column("output_bytes", "Int64", "output within the peak", lambda row: row.output_bytes),
    Column(
        "expected_alloc_bytes",
        "Int64",
        "analytic expectation of the peak",
        lambda row: row.expected_alloc_bytes,
    ),
    Column(
        "memory_method", "text", "how measured, or why not", lambda row: text(row.memory_method)
    ),
)

_PROVENANCE = (
    Column("kernel", "text", "what really ran", lambda row: text(row.kernel)),
    Column(
        "mask_form",
        "text",
        "how it received the mask: `none`, `flag`, `tensor`, `flag+tensor` or `unknown`",
        lambda row: row.mask_form or "unknown",
    ),
    Column("notes", "text", "work beyond the kernel in the call", lambda row: "; ".join(row.notes)),
    Column("flags", "text", "findings of the guards, joined by `; `", lambda r: "; ".join(r.flags)),
    Column(
        "implementation_version",
        "text",
        "version of the code that ran",
        lambda row: text(row.implementation_version),
    ),
    Column("is_baseline", "boolean", "whether others are compared to it", lambda r: r.is_baseline),
    Column("process", "text", "token of the measuring process", lambda row: text(row.process)),
    Column("environment_key", "text", "hash of the environment", lambda r: text(r.environment_key)),
    Column("started_at", "text", "UTC, ISO 8601", lambda row: text(row.started_at)),
    Column(
        "calls_s", "Float64", "seconds inside its calls, untimed ones too", lambda row: row.calls_s
    ),
    Column("wall_s", "Float64", "wall time of the case in its process", lambda row: row.wall_s),
    Column(
        "reference_s",
        "Float64",
        "time that the case's exact results took, once for all its rows",
        lambda row: row.reference_s,
    ),
    Column(
        "judging_s",
        "Float64",
        "time of comparing its first and its last timed outputs with them",
        lambda row: row.judging_s,
    ),
    Column("repro", "text", "command that repeats the cell", lambda row: row.repro),
)

_SAMPLES = (
    Column(
        "times_s",
        "object",
        "tuple `[round][call]` of seconds per call; rows of one `process` pair by round",
        lambda row: row.samples.times_s,
    ),
    Column(
        "shadow_times_s",
        "object",
        "tuple: the same for the baseline's second copy; empty elsewhere",
        lambda row: row.shadow.times_s,
    ),
    Column("round_order", "object", "tuple: position in each round", lambda r: r.samples.orders),
    Column(
        "canary_s", "object", "tuple: a fixed piece of work, by round", lambda r: r.canary_times_s
    ),
)

COLUMNS: tuple[Column, ...] = (
    *_IDENTITY,
    *_axes(),
    *_LATENCY,
    *_MEMORY,
    *_errors(),
    *_PROVENANCE,
    *_SAMPLES,
)
AXES: tuple[str, ...] = tuple(column.name for column in _axes())
SAMPLE_COLUMNS: tuple[str, ...] = tuple(column.name for column in _SAMPLES)


def records(rows: Iterable[Row]) -> list[Mapping[str, Any]]:
    return [{column.name: column.value(row) for column in COLUMNS} for row in rows]


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a DataFrame with exactly ``COLUMNS``, sorted by case, implementation and pass."""
    import pandas as pd

    # A fixed storage: the default one depends on whether pyarrow is installed.
    types: Mapping[str, Any] = {"text": pd.StringDtype(storage="python")}
    table = records(sorted(rows, key=lambda row: (row.run_id, *row.pair)))
    return pd.DataFrame(
        {
            column.name: pd.Series(
                [record[column.name] for record in table],
                dtype=types.get(column.kind, column.kind),
            )
            for column in COLUMNS
        }
    )
