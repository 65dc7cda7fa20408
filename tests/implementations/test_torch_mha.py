"""nn.MultiheadAttention as a layer implementation: values, gradients, and which path it took."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from harness.errors import UnsupportedCaseError
from harness.interface import (
    AttentionInputs,
    Case,
    Contract,
    LayerInputs,
    LayerWeights,
    torch_dtype,
)
from implementations.torch_mha import TorchMha
from tests.implementations.exact import case_of, exact_attention, mask_tensors, random_inputs

FAST = "torch_mha:aten::_native_multi_head_attention"
SDPA = "torch_mha:aten::_scaled_dot_product_flash_attention_for_cpu"


def layer_case(mask: str = "none", mode: str = "forward", **axes: object) -> Case:
    case = case_of(mask, mode, **axes)
    return Case(config=case.config, mode=case.mode, scope="layer")  # type: ignore[arg-type]


def layer_inputs(case: Case) -> LayerInputs:
    c = case.config
    torch.manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        drawn = torch.randn(shape).to(torch_dtype(c.dtype)) * 0.3
        return drawn.requires_grad_(case.mode.has_gradients)

    x = leaf(c.batch_size, c.seq_len, c.hidden_size)
    x_kv = x if c.seq_len == c.kv_seq_len else leaf(c.batch_size, c.kv_seq_len, c.hidden_size)
    weights = LayerWeights(
        leaf(3 * c.hidden_size, c.hidden_size), leaf(c.hidden_size, c.hidden_size), c.num_heads
    )
    return LayerInputs(x, x_kv, weights, mask_tensors(c))


@dataclass(frozen=True)
class Exact:
    output: Tensor
    gradients: tuple[Tensor, ...]


def exact_layer(case: Case, inputs: LayerInputs) -> Exact:
    """The layer head by head in float64, with the gradients of its sum."""
    c = case.config
    copies = {
        name: leaf.detach().double().requires_grad_(case.mode.has_gradients)
        for name, leaf in inputs.leaves.items()
    }
    x, w_qkv, w_o = copies["x"], copies["w_qkv"], copies["w_o"]
    x_kv = copies.get("x_kv", x)
    parts = w_qkv.view(3, c.num_heads, c.head_dim, c.hidden_size)
    q, k, v = (
        torch.stack([source @ head.T for head in part], dim=1)
        for source, part in zip((x, x_kv, x_kv), parts, strict=True)
    )
    heads = exact_attention(c, AttentionInputs(q, k, v, inputs.masks))
    output = torch.cat(heads.unbind(dim=1), dim=-1) @ w_o.T
    leaves = tuple(copies.values())
    return Exact(output, torch.autograd.grad(output.sum(), leaves) if w_o.requires_grad else ())


def run(case: Case, inputs: LayerInputs) -> Tensor:
    implementation = TorchMha()
    assert implementation.unsupported_reasons(case) == ()
    with torch.set_grad_enabled(case.mode.is_training):
        return implementation.prepare(case, inputs)()


MASKS = ("none", "top_left", "bottom_right", "padding:0.5", "keep:random", "bias:random")
MASKS += ("top_left+padding:0.3+keep:random",)


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("lengths", [(7, 7), (5, 9), (9, 4)])
@pytest.mark.parametrize("mask", MASKS)
def test_output_and_gradients_equal_the_float64_layer(
    mask: str, lengths: tuple[int, int], mode: str
) -> None:
    case = layer_case(mask, mode, seq_len=lengths[0], kv_seq_len=lengths[1])
    inputs = layer_inputs(case)
    expected = exact_layer(case, inputs)
    output = run(case, inputs)
    torch.testing.assert_close(output.double(), expected.output, atol=1e-5, rtol=0)
    if mode == "forward_backward":
        gradients = torch.autograd.grad(output.sum(), tuple(inputs.leaves.values()))
        for actual, exact in zip(gradients, expected.gradients, strict=True):
            torch.testing.assert_close(actual.double(), exact, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sizes", [{"batch_size": 0}, {"seq_len": 0}])
def test_empty_sizes_give_empty_outputs(sizes: dict[str, int]) -> None:
    case = layer_case(**sizes)
    inputs = layer_inputs(case)
    assert run(case, inputs).shape == inputs.x.shape


@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        (layer_case(), FAST),
        (layer_case("causal"), FAST),
        (layer_case("padding:0.5"), FAST),
        (layer_case("bias:random"), SDPA),
        (layer_case(kv_seq_len=9), SDPA),
        (layer_case(mode="forward_train"), SDPA),
        (layer_case(num_heads=1, head_dim=32), SDPA),
    ],
    ids=lambda value: value.id if isinstance(value, Case) else "",
)
def test_the_kernel_is_the_path_that_a_call_took(case: Case, kernel: str) -> None:
    assert TorchMha().kernel(case, layer_inputs(case)) == kernel


def test_a_fast_path_that_is_switched_off_is_not_claimed() -> None:
    case = layer_case()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert TorchMha().kernel(case, layer_inputs(case)) == SDPA
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_the_contract_and_the_note_follow_the_path() -> None:
    fast, slow = layer_case(), layer_case(mode="forward_train")
    assert TorchMha().contract(fast) is Contract.MATERIALISED
    assert "zero biases" in TorchMha().notes(fast)[0]
    assert TorchMha().contract(slow) is Contract.FUSED
    assert TorchMha().notes(slow) == ()


def test_dropout_is_applied_in_training_and_repeats_under_one_seed() -> None:
    case = layer_case(mode="forward_train", dropout_p=0.5, seq_len=16)
    inputs = layer_inputs(case)
    outputs = []
    for seed in (1, 1, 2):
        call = TorchMha().prepare(case, inputs)
        torch.manual_seed(seed)
        outputs.append(call())
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (case_of(), "scope=attention (only layer)"),
        (layer_case(num_kv_heads=2), "num_kv_heads=2 (only num_heads=4)"),
        (layer_case(head_dim=16), "head_dim=16 (only hidden_size / num_heads)"),
        (layer_case(scale=0.5), "scale=0.5 (only 1/sqrt(head_dim))"),
    ],
    ids=lambda value: value.id if isinstance(value, Case) else "",
)
def test_what_the_module_can_t_express_is_a_reason(case: Case, reason: str) -> None:
    assert TorchMha().unsupported_reasons(case) == (reason,)


def test_preparing_scope_attention_anyway_is_refused() -> None:
    case = case_of()
    with pytest.raises(UnsupportedCaseError, match="only layer"):
        TorchMha().prepare(case, random_inputs(case))
