"""Correct attention is never called wrong: the claim, counted over cells, seeds and distributions.

Always a sample; ``--nightly`` the whole of it: 30 cells x 10 seeds x 10 distributions x 3 dtypes,
on five kernels, with the log-sum-exp of those that offer one.
"""

from __future__ import annotations

import itertools

import pytest

from harness.attention import Case
from harness.inputs.sets import make_inputs
from harness.measuring.log_sum_exp import attended_with_lse
from harness.numerics.judgement import judge, make_reference
from tests.everyone import load
from tests.judging import outputs_of

KERNELS = ("naive", "sdpa", "sdpa_math", "chunked", "fused")
DISTRIBUTIONS = (
    "gaussian",
    "logits_x8",
    "logits_x32",
    "outlier_channel",
    "spikes",
    "shifted_keys",
    "attention_sink",
    "zero_queries",
    "constant_values",
    "subnormal",
)
_SHAPES = (
    {"hidden_size": 16, "num_heads": 2, "seq_len": 1},
    {"hidden_size": 64, "num_heads": 4, "seq_len": 17},
    {"hidden_size": 64, "num_heads": 2, "seq_len": 64},
    {"hidden_size": 126, "num_heads": 2, "seq_len": 33, "num_kv_heads": 1},
    {"hidden_size": 128, "num_heads": 1, "seq_len": 127, "batch_size": 2},
    {"hidden_size": 128, "num_heads": 2, "seq_len": 257},
    {"hidden_size": 40, "num_heads": 1, "seq_len": 5, "kv_seq_len": 301},
    {"hidden_size": 40, "num_heads": 2, "seq_len": 90, "kv_seq_len": 31},
    {"hidden_size": 256, "num_heads": 1, "seq_len": 50},
    {"hidden_size": 96, "num_heads": 3, "seq_len": 100, "kv_seq_len": 128, "num_kv_heads": 3},
)
_MASKS = ("none", "bottom_right", "padding:0.3+keep:random+bias:random")
CELLS = tuple({**shape, "mask": mask} for shape in _SHAPES for mask in _MASKS)


def _failures(cells, seeds, distributions, dtype):
    found = []
    for cell, seed, distribution in itertools.product(cells, seeds, distributions):
        axes = {**cell, "seed": seed, "inputs": distribution, "dtype": dtype}
        # Gradients of one seed in three: they take longer and follow from the same terms.
        case = Case.from_dict({**axes, "mode": "forward" if seed % 3 else "backward"})
        inputs = make_inputs(case)
        reference = make_reference(case, inputs)
        for name in KERNELS:
            if load(name).unsupported_reasons(case):
                continue
            with_lse = attended_with_lse(load(name), case, inputs)
            outputs = {**with_lse, **outputs_of(load(name), case, inputs)}
            judgement = judge(reference, outputs, load(name).contract(case))
            found += [(name, case.id, reason) for reason in judgement.reasons]
    return found


def test_the_claim_is_about_thirty_cells():
    assert len(CELLS) == 30
    assert len(DISTRIBUTIONS) == 10


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_no_false_failure_in_a_sample(dtype):
    every_second = (CELLS[i] for i in range(0, len(CELLS), 4))
    assert _failures(every_second, (3,), DISTRIBUTIONS, dtype) == []


@pytest.mark.nightly
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_no_false_failure_over_all_cells_and_ten_seeds(dtype, distribution):
    assert _failures(CELLS, range(10), (distribution,), dtype) == []
