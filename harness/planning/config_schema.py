"""The types of the configuration, as the plain dataclasses that Hydra checks every key against.

Values and their defaults live in conf/config.yaml, which reads as the table of contents; the axes
are ``Any`` here because each takes one value or a list. ``harness.planning.config`` turns all of it
into the domain's types, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class ImplementationSchema:
    """One entry of ``implementations``; ``conf/implementation/<name>.yaml`` holds one each."""

    target: str = MISSING
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class MeasureSchema:
    """How long and how exactly; the fields of ``harness.settings.MeasureSettings``."""

    passes: int = MISSING
    budget_s: float = MISSING
    precision: float = MISSING
    margin: float = MISSING
    call_timeout_s: float = MISSING
    min_sample_s: float = MISSING
    max_burst_s: float = MISSING
    burst_calls: int = MISSING
    warmup_min_s: float = MISSING
    warmup_max_s: float = MISSING
    input_sets: int = MISSING
    max_rounds: int = MISSING
    memory_repeats: int = MISSING


@dataclass
class SweepSchema:
    """Everything that ``mha-bench sweep`` takes at the top level."""

    # axes
    hidden_size: Any = MISSING
    num_heads: Any = MISSING
    num_kv_heads: Any = MISSING
    head_dim: Any = MISSING
    seq_len: Any = MISSING
    kv_seq_len: Any = MISSING
    batch_size: Any = MISSING
    dtype: Any = MISSING
    mask: Any = MISSING
    scale: Any = MISSING
    dropout_p: Any = MISSING
    scope: Any = MISSING
    mode: Any = MISSING
    device: Any = MISSING
    threads: Any = MISSING
    inputs: Any = MISSING
    cache: Any = MISSING
    allocator: Any = MISSING
    seed: Any = MISSING
    points: Any = MISSING
    min_head_dim: int | None = MISSING
    # filled by the groups model, implementation and measure
    models: dict[str, Any] = field(default_factory=dict)
    implementations: dict[str, Any] = field(default_factory=dict)
    measure: MeasureSchema = field(default_factory=MeasureSchema)
    baseline: Any = MISSING
    # the run as a whole
    results_dir: str = MISSING
    name: str | None = MISSING
    run: str | None = MISSING
    dry_run: bool = MISSING
    budget: Any = MISSING
    memory_limit: Any = MISSING
    fail_on: Any = MISSING
