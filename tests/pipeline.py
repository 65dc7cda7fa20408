"""Runs a few implementations through the whole pipeline: plan, workers, rounds, rows on disk."""

from dataclasses import dataclass, field

from harness.attention import AttentionConfig, Case
from harness.planning.config import RunConfig
from harness.planning.plan import Plan
from harness.settings import ImplementationSpec, MeasureSettings
from harness.store import create_run, read_rows
from harness.sweep import run_sweep

QUICK = {
    "budget_s": 5.0,  # never spent: six rounds end it, on a busy machine too
    "warmup_min_s": 0.0,
    "warmup_max_s": 0.05,
    "max_rounds": 6,
    "call_timeout_s": 20.0,
    "memory_repeats": 1,
}


@dataclass
class Watching:
    """An observer that remembers."""

    started: list = field(default_factory=list)
    rows: list = field(default_factory=list)
    messages: list = field(default_factory=list)

    def on_case_start(self, case, pass_index, done, total, eta_s):
        self.started.append((case.key, pass_index, done, total))

    def on_row(self, row):
        self.rows.append(row)

    def on_message(self, text):
        self.messages.append(text)


def a_case(seq_len=33, threads=1, **axes):
    """A tiny case; one thread, since two wait for each other's time slices on a busy machine."""
    circumstances = {k: axes.pop(k) for k in ("mode", "device", "scope", "cache") if k in axes}
    sizes = {"hidden_size": 24, "num_heads": 3, "batch_size": 2, "seq_len": seq_len}
    return Case(config=AttentionConfig(**(sizes | axes)), threads=threads, **circumstances)


def fake(name, **options):
    """Spec of a class in tests/fakes.py, under its own name."""
    return ImplementationSpec(name, f"tests.fakes:{name}", options)


def sweep(folder, specs, cases=None, run=None, observer=None, memory_limit_bytes=None, **measure):
    """Rows of a sweep over ``specs`` x ``cases``, by (implementation, seq_len, pass)."""
    settings = MeasureSettings(**(QUICK | measure))
    plan = Plan(
        cases=tuple(cases or [a_case()]),
        invalid=(),
        implementations=tuple(specs),
        passes=settings.passes,
        eta_s=0.0,
    )
    config = RunConfig(
        axes={},
        implementations=tuple(specs),
        baseline="Right",
        measure=settings,
        memory_limit_bytes=memory_limit_bytes,
    )
    run = run or create_run(folder)
    run_sweep(plan, run, config, observer or Watching())
    rows = read_rows(run)
    by_pair = {(r.implementation, r.case.config.seq_len, r.pass_index): r for r in rows}
    assert len(by_pair) == len(rows)
    return by_pair
