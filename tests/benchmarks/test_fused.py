"""Speed of the fused kernels against ``F.scaled_dot_product_attention``.

The table of ratios, calls interleaved, medians of paired ratios, best of both in GFLOP/s::

    python -m tests.benchmarks.test_fused --threads 1 2 --dtype float32 bfloat16

A canary stands above it: the speed of a bfloat16 matrix product, which loads tiles. Where it is far
below its usual figure, the machine was in a slow state or busy, and so are all figures under it.
As pytest-benchmark cases: ``pytest tests/benchmarks/test_fused.py --benchmark-only``.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from harness.attention import AttentionConfig, Case, Mask
from harness.inputs.sets import make_inputs
from implementations.fused import Fused

# (num_heads, seq_len, head_dim)
SHAPES = [
    (8, 128, 96),
    (8, 512, 96),
    (8, 2048, 96),
    (16, 2048, 64),
    (32, 1024, 128),
    (8, 8192, 64),
]
ROUNDS = 15
ROUND_S = 2e-3  # short calls are repeated until a sample takes this long

Call = Callable[[], torch.Tensor]


def make_case(num_heads: int, seq_len: int, head_dim: int, dtype: str, mask: str) -> Case:
    config = AttentionConfig(
        hidden_size=num_heads * head_dim,
        num_heads=num_heads,
        seq_len=seq_len,
        dtype=dtype,
        mask=Mask.parse(mask),
    )
    return Case(config=config, threads=torch.get_num_threads())


def make_calls(case: Case, precision: str) -> tuple[Call, Call]:
    """SDPA and fused on the same inputs."""
    inputs = make_inputs(case)
    q, k, v = inputs.q, inputs.k, inputs.v
    is_causal = case.config.is_causal

    def sdpa() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    return sdpa, Fused(precision=precision).prepare(case, inputs)


def seconds(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def compare(first: Call, second: Call) -> tuple[float, float, float]:
    """Median of first / second over interleaved rounds, and the shortest seconds of each."""
    repeats = max(1, int(ROUND_S / max(seconds(first, 2), seconds(second, 2))))
    pairs = [(seconds(first, repeats), seconds(second, repeats)) for _ in range(ROUNDS)]
    ratio = math.exp(statistics.median(math.log(a / b) for a, b in pairs))
    return ratio, min(a for a, _ in pairs), min(b for _, b in pairs)


def canary_gflops() -> float:
    x = torch.randn(512, 512).bfloat16()
    return 2 * 512**3 / min(seconds(lambda: x @ x, 3) for _ in range(5)) / 1e9


def print_table(dtype: str, precision: str, threads: int) -> None:
    torch.set_num_threads(threads)
    print(f"{dtype} {precision}, {threads} threads, canary {canary_gflops():.0f} GFLOP/s")
    logarithms = []
    for num_heads, seq_len, head_dim in SHAPES:
        for mask in ("none", "causal"):
            case = make_case(num_heads, seq_len, head_dim, dtype, mask)
            ratio, sdpa_s, fused_s = compare(*make_calls(case, precision))
            pairs = seq_len * (seq_len + 1) / 2 if mask == "causal" else seq_len**2
            gflop = 4 * num_heads * head_dim * pairs / 1e9
            logarithms.append(math.log(ratio))
            print(
                f"  H{num_heads} S{seq_len} D{head_dim} {mask:6} {ratio:5.2f}x"
                f"  sdpa {gflop / sdpa_s:5.0f}  fused {gflop / fused_s:5.0f} GFLOP/s",
                flush=True,
            )
    geometric_mean = math.exp(statistics.fmean(logarithms))
    print(f"  geometric mean {geometric_mean:.2f}x, least {math.exp(min(logarithms)):.2f}x")


@pytest.mark.parametrize("which", ["sdpa", "fused"])
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_forward(benchmark, shape: tuple[int, int, int], dtype: str, mask: str, which: str) -> None:
    sdpa, fused = make_calls(make_case(*shape, dtype, mask), "full")
    output = benchmark(sdpa if which == "sdpa" else fused)
    assert output.isfinite().all()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--precision", nargs="+", default=["full"])
    chosen = parser.parse_args()
    with torch.no_grad():
        for chosen_dtype in chosen.dtype:
            for chosen_precision in chosen.precision:
                for count in chosen.threads:
                    print_table(chosen_dtype, chosen_precision, count)
