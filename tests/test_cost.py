"""Arithmetic of a case's cost against counting, against torch's own counter, and by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from harness import cost
from harness.attention import Mode
from harness.inputs.sets import make_inputs
from harness.interface import AttentionImplementation
from harness.tensors import dense_keep
from tests.problems import a_case, configs

# The mask's parts that exclude pairs exactly; keep:random is an expectation.
_EXACT = (
    "none",
    "top_left",
    "bottom_right",
    "bottom_right+window:3",
    "top_left+window:2+padding:0.5",
    "padding:0.5",
    "document",
    "bottom_right+document+padding:0.3",
)


class Plain(AttentionImplementation):
    """Attention by products that torch's counter sees, masks left out."""

    name = "plain"

    def make_attend(self, case, masks):
        return lambda q, k, v: ((q * case.config.scale) @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize(
    ("seq_len", "kv_seq_len", "mask", "pairs"),
    [
        (4, 4, "causal", 10),
        (2, 5, "bottom_right", 9),
        (5, 2, "bottom_right", 3),
        (2, 5, "top_left", 3),
        (4, 4, "none", 16),
        (0, 4, "top_left", 0),
        (4, 0, "none", 0),
    ],
)
def test_pairs_of_one_head_are_those_counted_by_hand(seq_len, kv_seq_len, mask, pairs):
    case = a_case(hidden_size=64, num_heads=1, seq_len=seq_len, kv_seq_len=kv_seq_len, mask=mask)
    assert cost.unmasked_pairs(case.config) == pairs
    assert cost.flop_count(case) == pairs * 2 * (64 + 64)


def test_the_report_of_a_causal_square_is_2560_flop():
    case = a_case(hidden_size=64, num_heads=1, seq_len=4, mask="causal")
    assert cost.flop_count(case) == 2560


@pytest.mark.parametrize("mask", _EXACT)
@given(configs())
def test_pairs_equal_the_count_of_the_dense_mask(mask, case):
    case = type(case).from_dict({**case.to_dict(), "mask": mask})
    c, inputs = case.config, make_inputs(case)
    shape = (c.batch_size, c.num_heads, c.seq_len, c.kv_seq_len)
    keep = dense_keep(c, inputs.masks, "cpu")
    counted = torch.ones(shape) if keep is None else keep.expand(shape)
    assert cost.unmasked_pairs(c) == int(counted.sum())


def test_a_random_mask_counts_as_its_expectation():
    case = a_case(batch_size=8, seq_len=64, mask="causal+keep:random")
    keep = dense_keep(case.config, make_inputs(case).masks, "cpu")
    counted = int(keep.expand(8, 4, 64, 64).sum())
    assert cost.unmasked_pairs(case.config) == round(8 * 65 * 64 / 2 * 0.8 / 8) * 8 * 4
    assert abs(cost.unmasked_pairs(case.config) / counted - 1) < 0.02


@pytest.mark.parametrize("scope", ["attention", "layer"])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("kv_seq_len", [7, 5])
def test_flops_equal_those_of_torchs_counter(scope, num_kv_heads, kv_seq_len):
    for mode in Mode:
        case = a_case(
            scope=scope,
            num_kv_heads=num_kv_heads,
            kv_seq_len=kv_seq_len,
            batch_size=2,
            head_dim=8,
            mode=mode,
        )
        assert cost.flop_count(case) == _counted_flops(case)


def _counted_flops(case):
    inputs = make_inputs(case)
    leaves = [leaf.requires_grad_(case.mode.is_training) for leaf in inputs.leaves.values()]
    call = Plain().prepare(case, inputs)
    with FlopCounterMode(display=False) as counter:
        output = call()
        forward = counter.get_total_flops()
        if case.mode.has_gradients:
            torch.autograd.grad(output, leaves, inputs.grad_output)
    return counter.get_total_flops() - forward * (case.mode is Mode.BACKWARD)


def test_flops_equal_those_of_sdpa_where_nothing_is_masked():
    case = a_case(batch_size=2)
    inputs = make_inputs(case)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        F.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v)
    assert cost.flop_count(case) == counter.get_total_flops()


@pytest.mark.parametrize("scope", ["attention", "layer"])
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("mask", ["none", "padding:0.5", "document", "keep:random+bias:random"])
@pytest.mark.parametrize("kv_seq_len", [7, 5])
def test_bytes_are_those_of_the_tensors(scope, mode, mask, kv_seq_len):
    case = a_case(
        scope=scope, mode=mode, mask=mask, kv_seq_len=kv_seq_len, dtype="bfloat16", batch_size=2
    )
    inputs = make_inputs(case)
    masks = [inputs.masks.key_padding, inputs.masks.keep, inputs.masks.bias]
    tensors = [*inputs.leaves.values(), *masks, inputs.grad_output]
    assert cost.input_bytes(case) == sum(t.nbytes for t in tensors if t is not None)
    whole = next(iter(inputs.leaves.values()))  # q or x, whose shape the output has
    assert cost.output_bytes(case) == whole.nbytes
    gradients = sum(t.nbytes for t in inputs.leaves.values()) * mode.has_gradients
    assert cost.gradient_bytes(case) == gradients
    output = whole.nbytes * (mode is not Mode.BACKWARD)
    assert cost.min_bytes(case) == cost.input_bytes(case) + output + gradients
    assert cost.needed_bytes(case) > 4 * cost.input_bytes(case)


def test_one_score_matrix_by_hand():
    case = a_case(hidden_size=512, num_heads=8, seq_len=2048)
    assert cost.score_bytes(case) == 8 * 2048 * 2048 * 4


def test_the_roofline_names_the_ceiling_that_binds():
    case = a_case(hidden_size=512, num_heads=8, seq_len=2048)
    fast_memory = cost.roofline(case, flop_per_s=1e9, bytes_per_s=1e15)
    assert fast_memory.binds == "compute"
    assert fast_memory.time_s == cost.flop_count(case) / 1e9
    slow_memory = cost.roofline(case, flop_per_s=1e18, bytes_per_s=1e3)
    assert slow_memory.binds == "memory"
    assert slow_memory.time_s == cost.min_bytes(case) / 1e3
    assert slow_memory.intensity == cost.flop_count(case) / cost.min_bytes(case)


def test_an_empty_problem_costs_nothing_to_compute():
    line = cost.roofline(a_case(batch_size=0), flop_per_s=1.0, bytes_per_s=1.0)
    assert (line.time_s, line.intensity) == (0.0, 0.0)
