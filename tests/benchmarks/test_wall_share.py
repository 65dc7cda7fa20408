"""How much of a standard sweep's wall time goes into calls of implementations and the oracle.

    pytest tests/benchmarks/test_wall_share.py --benchmark-only -s

The whole command counts: starting, the machine's ceilings, claims, workers, memory, storing, the
tables at the end. What is inside is what the rows say: calls (untimed ones too), the float64
reference, and judging, which calls again and compares.
"""

import time

import harness
from tests.command import mha_bench

SWEEP = (
    "sweep",
    "measure=standard",
    "hidden_size=768",
    "num_heads=8",
    "seq_len=512,1024",
    "implementation=[naive,sdpa,fused]",
)
ACCEPTED = 0.8


def test_share_of_a_standard_sweep_inside_calls(benchmark, tmp_path, capsys):
    def sweep():
        return mha_bench(*SWEEP, cwd=tmp_path, timeout_s=600)

    started = time.perf_counter()
    done = benchmark.pedantic(sweep, rounds=1)
    wall_s = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    [run] = (tmp_path / "results").iterdir()
    rows = harness.load(run)
    assert set(rows.status) == {"ok"}
    calls_s = rows.calls_s.sum()
    reference_s = rows.groupby("process").reference_s.max().sum()
    judging_s = rows.judging_s.sum()
    share = (calls_s + reference_s + judging_s) / wall_s
    with capsys.disabled():
        print(f"\n{len(rows)} rows in {wall_s:.0f} s; calls {calls_s / wall_s:.0%}, ", end="")
        print(f"oracle {reference_s / wall_s:.0%}, judging {judging_s / wall_s:.0%}: {share:.0%}")
    assert share >= ACCEPTED
