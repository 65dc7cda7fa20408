"""What naive and chunked promise beyond the right values."""

from __future__ import annotations

import pytest
import torch

from harness.errors import InvalidValueError
from harness.interface import Contract
from implementations.chunked import Chunked, _Problem
from implementations.naive import Naive
from tests.implementations.exact import attends, case_of, random_inputs


def largest_tensor(call: object) -> int:
    """Elements of the largest tensor that any operation inside the call made."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            for made in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(made, torch.Tensor):
                    Watch.largest = max(Watch.largest, made.numel())
            return result

    with Watch():
        call()  # type: ignore[operator]
    return Watch.largest


def test_naive_materialises_the_scores_and_says_so() -> None:
    case = case_of(batch_size=2, seq_len=64, kv_seq_len=96)
    assert Naive().contract(case) is Contract.MATERIALISED
    assert largest_tensor(Naive().prepare(case, random_inputs(case))) == 2 * 4 * 64 * 96


def test_chunked_never_holds_more_scores_than_one_chunk() -> None:
    case = case_of(batch_size=2, seq_len=64, kv_seq_len=96)
    assert Chunked().contract(case) is Contract.FUSED
    call = Chunked(query_chunk=8, key_chunk=16).prepare(case, random_inputs(case))
    assert largest_tensor(call) == 2 * 4 * 64 * 8  # the output; a chunk of scores is smaller


def test_chunked_rounds_only_its_output_in_low_precision() -> None:
    case = case_of(dtype="bfloat16", seq_len=64)
    inputs = random_inputs(case)
    exact = case_of(seq_len=64)
    output = Chunked().prepare(case, inputs)()
    in_float32 = type(inputs)(inputs.q.float(), inputs.k.float(), inputs.v.float())
    expected = Chunked().prepare(exact, in_float32)()
    assert torch.equal(output, expected.bfloat16())


@pytest.mark.parametrize(
    "mask", ["top_left", "bottom_right", "top_left+window:3", "bottom_right+window:2"]
)
@pytest.mark.parametrize(("seq_len", "kv_seq_len"), [(9, 6), (6, 9), (8, 8)])
def test_chunked_visits_exactly_the_keys_that_some_query_sees(
    mask: str, seq_len: int, kv_seq_len: int
) -> None:
    c = case_of(mask, seq_len=seq_len, kv_seq_len=kv_seq_len).config
    problem = _Problem(c, random_inputs(case_of()).masks, key_chunk=1)
    for start in range(0, seq_len, 2):
        stop = min(start + 2, seq_len)
        seen = [j for j in range(kv_seq_len) if any(attends(c, i, j) for i in range(start, stop))]
        visited = range(*problem.visible_keys(start, stop))
        assert list(visited) == seen


def test_windows_without_a_triangle_are_skipped_on_both_sides() -> None:
    c = case_of("window:2", seq_len=40).config
    problem = _Problem(c, random_inputs(case_of()).masks, key_chunk=4)
    assert problem.visible_keys(10, 12) == (9, 13)


@pytest.mark.parametrize("argument", ["query_chunk", "key_chunk"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True])
def test_a_chunk_size_that_is_no_size_is_refused_by_name(argument: str, value: object) -> None:
    with pytest.raises(InvalidValueError, match=f"{argument}: expected a whole number"):
        Chunked(**{argument: value})  # type: ignore[arg-type]


def test_the_kernel_names_the_chunks() -> None:
    case = case_of()
    assert Chunked(64, 32).kernel(case, random_inputs(case)) == "chunked 64x32"


def test_recomputation_is_told_where_it_happens() -> None:
    assert Chunked().notes(case_of()) == ()
    assert Chunked().notes(case_of(mode="backward")) == (
        "the backward pass recomputes each query chunk",
    )


def test_a_graph_of_chunked_can_be_walked_twice() -> None:
    case = case_of("causal", mode="backward")
    inputs = random_inputs(case)
    output = Chunked(3, 2).prepare(case, inputs)()
    leaves = (inputs.q, inputs.k, inputs.v)
    first = torch.autograd.grad(output, leaves, torch.ones_like(output), retain_graph=True)
    second = torch.autograd.grad(output, leaves, torch.ones_like(output))
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)
