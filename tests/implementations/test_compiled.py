"""What torch.compile makes of attention: right values, a named kernel, and no silent fallback."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.interface import (
    AttentionImplementation,
    Case,
    Contract,
    dense_bias,
    dense_keep,
)
from implementations.compiled import CompiledNaive, Flex, flex
from implementations.compiled.region import Region, _own_copy, missing_compiler
from tests.implementations.exact import (
    case_of,
    exact_attention,
    in_float64,
    mask_tensors,
    random_inputs,
    with_gradients,
)

# Inductor's own imports warn of deprecations inside torch.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
compiles = pytest.mark.compiles

EVERYTHING = "window:3+padding:0.5+keep:random+bias:random"
ROWS_WITHOUT_KEYS = {"seq_len": 9, "kv_seq_len": 5}


def error(implementation: AttentionImplementation, case: Case, seed: int = 0) -> float:
    inputs = random_inputs(case, seed)
    with torch.set_grad_enabled(case.mode.is_training):
        output = implementation.prepare(case, inputs)()
    return float((output.double() - exact_attention(case.config, inputs)).abs().max())


@compiles
@pytest.mark.parametrize(
    ("mask", "axes", "kernel"),
    [
        ("none", {}, "inductor:aten::_scaled_dot_product_flash_attention_for_cpu"),
        (EVERYTHING, {"num_kv_heads": 2}, "inductor:generated loops"),
        ("bottom_right", ROWS_WITHOUT_KEYS, "inductor:generated loops"),
    ],
)
def test_compiled_naive_is_right_and_names_what_the_compiler_made_of_it(
    mask: str, axes: dict[str, int], kernel: str
) -> None:
    case = case_of(mask, **axes)
    implementation = CompiledNaive()
    assert implementation.unsupported_reasons(case) == ()
    assert error(implementation, case) < 1e-6
    assert implementation.kernel(case, random_inputs(case)) == kernel
    assert "finding" not in " ".join(implementation.notes(case))


@compiles
def test_compiled_naive_has_gradients_and_its_graph_can_be_walked_twice() -> None:
    case = case_of("causal+bias:random", "backward")
    inputs = random_inputs(case)
    exact_inputs = in_float64(inputs)
    expected = with_gradients(exact_attention(case.config, exact_inputs), exact_inputs)
    output = CompiledNaive().prepare(case, inputs)()
    leaves = (inputs.q, inputs.k, inputs.v)
    torch.autograd.grad(output, leaves, torch.ones_like(output), retain_graph=True)
    assert max(with_gradients(output, inputs).difference(expected).values()) < 3e-6


@compiles
@pytest.mark.parametrize(
    ("mask", "axes"),
    [("none", {}), (EVERYTHING, {"num_kv_heads": 2}), ("bottom_right", ROWS_WITHOUT_KEYS)],
)
def test_flex_is_right_and_compiles_once_for_all_inputs_of_a_case(
    mask: str, axes: dict[str, int]
) -> None:
    case = case_of(mask, **axes)
    implementation = Flex()
    assert implementation.unsupported_reasons(case) == ()
    for seed in range(3):
        assert error(implementation, case, seed) < 1e-6
    assert implementation.kernel(case, random_inputs(case)) == "inductor:flex_attention"
    assert implementation.notes(case) == ()


@pytest.mark.parametrize("kind", [CompiledNaive, Flex])
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
def test_a_fall_back_to_eager_code_is_a_finding(kind: type[CompiledNaive | Flex]) -> None:
    case = case_of("causal")
    implementation = kind()
    with torch.compiler.set_stance("force_eager"):
        assert error(implementation, case) < 1e-6
        assert implementation.kernel(case, random_inputs(case)) == "eager"
    (note,) = implementation.notes(case)
    assert note == "finding: fell back to eager code, torch.compile made no graph"


def test_a_second_graph_for_one_case_is_a_finding() -> None:
    region = Region(double)
    region.graphs = 2
    assert region.findings == ("finding: compiled 2 graphs for one case",)


def double(x: Tensor) -> Tensor:
    return x * 2


def test_more_than_eight_cases_stay_compiled() -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, example_inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    for size in range(2, 14):
        compiled = torch.compile(_own_copy(double), backend=count, fullgraph=True, dynamic=False)
        compiled(torch.ones(size, size))
    assert len(graphs) == 12


@pytest.mark.parametrize("lengths", [(7, 7), (5, 11), (11, 5)])
@pytest.mark.parametrize(
    "mask",
    [
        "top_left",
        "bottom_right",
        "top_left+window:2",
        "bottom_right+window:3+padding:0.5",
        "padding:0.4",
        "keep:random",
        "bottom_right+keep:random+padding:0.3",
    ],
)
def test_the_block_mask_of_flex_is_our_mask(mask: str, lengths: tuple[int, int]) -> None:
    from torch.nn.attention.flex_attention import create_mask

    case = case_of(mask, seq_len=lengths[0], kv_seq_len=lengths[1])
    c, masks = case.config, mask_tensors(case.config)
    shape = (c.batch_size, c.num_heads, c.seq_len, c.kv_seq_len)
    block_mask = flex.make_block_mask(case, masks)
    theirs = create_mask(block_mask.mask_mod, *shape, device="cpu")
    ours = dense_keep(c, masks, "cpu")
    assert ours is not None
    assert torch.equal(theirs, ours.expand(shape))


def test_a_bias_of_minus_infinity_excludes_in_flex_too() -> None:
    from torch.nn.attention.flex_attention import create_mask

    case = case_of("bias:given")
    bias = torch.randn(1, 4, 7, 7).masked_fill(torch.rand(1, 4, 7, 7) < 0.3, float("-inf"))
    masks = type(mask_tensors(case.config))(bias=bias)
    keep = create_mask(flex.make_block_mask(case, masks).mask_mod, 1, 4, 7, 7, device="cpu")
    dense = dense_bias(case.config, masks, "cpu")
    assert dense is not None
    assert torch.equal(keep, ~torch.isneginf(dense))
    score = flex.make_score_mod(masks)(torch.tensor(1.0), *torch.tensor([0, 2, 3, 4]))
    assert score == 1.0 + (bias[0, 2, 3, 4] if keep[0, 2, 3, 4] else 0.0)


def test_no_mask_is_no_block_mask() -> None:
    case = case_of()
    assert flex.make_block_mask(case, mask_tensors(case.config)) is None
    assert flex.make_score_mod(mask_tensors(case.config)) is None


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (case_of(seq_len=0, kv_seq_len=3), "seq_len=0 (at least 1)"),
        (case_of(kv_seq_len=0), "kv_seq_len=0 (at least 1)"),
        (case_of(mode="backward"), "mode=backward (only forward: flex_attention has no"),
        (case_of(dtype="float64"), "dtype=float64 (only bfloat16, float16, float32)"),
    ],
    ids=lambda value: value.id if isinstance(value, Case) else "",
)
def test_what_flex_can_t_do_is_a_reason(case: Case, reason: str) -> None:
    (found,) = Flex().unsupported_reasons(case)
    assert found.startswith(reason)


def test_a_missing_compiler_is_a_reason_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert CompiledNaive().unsupported_reasons(case_of()) == (
        "no C++ compiler (g++, clang++, c++): install g++",
    )


def test_missing_triton_is_a_reason_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("implementations.compiled.region.find_spec", lambda name: None)
    assert list(missing_compiler("cuda")) == [
        "triton is not installed: pip install 'mha-bench[triton]'"
    ]


def test_what_was_compiled_is_judged_as_materialised_and_flex_as_fused() -> None:
    assert CompiledNaive().contract(case_of()) is Contract.MATERIALISED
    assert Flex().contract(case_of()) is Contract.FUSED
