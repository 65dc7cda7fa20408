"""Gradients of the fused kernels against float64 autograd, on every path, and through
torch.compile.
"""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from harness.attention import AttentionConfig, Case, Mask, Mode
from harness.inputs.sets import make_inputs
from harness.tensors import MaskTensors, dense_keep
from implementations.fused import Fused
from implementations.fused.native import Path, library, runnable_paths

needs_kernels = pytest.mark.skipif(
    library() is None, reason="the fused kernels were not built: no C++ compiler"
)

# Gradients of the tile path are those of AVX-512, from the tile path's forward pass.
PATHS = [path.name.lower() for path in runnable_paths()]
DTYPES = ["float32", "bfloat16", "float16"]
# Relative in the Frobenius norm, in units of the dtype; few keys and windows cancel.
LARGEST_ERROR_U = {"float32": 40.0, "bfloat16": 4.0, "float16": 4.0}
MASKS = [
    "none",
    "bottom_right",
    "bottom_right+window:9",
    "padding:0.5",
    "keep:random",
    "bias:random",
]


def make_case(**axes: object) -> Case:
    axes = {"num_heads": 4, "num_kv_heads": 2, "batch_size": 2, "head_dim": 20} | axes
    axes.setdefault("hidden_size", axes["num_heads"] * axes["head_dim"])
    axes["mask"] = Mask.parse(axes.get("mask", "none"))
    return Case(config=AttentionConfig(**axes), mode=Mode.FORWARD_BACKWARD)


def expected_gradients(
    c: AttentionConfig, masks: MaskTensors, grad: Tensor, *qkv: Tensor
) -> tuple[Tensor, ...]:
    q, k, v = (x.detach().double().requires_grad_() for x in qkv)
    keys, values = (x.repeat_interleave(c.group_size, dim=1) for x in (k, v))
    scores = q @ keys.transpose(-1, -2) * c.scale
    if masks.bias is not None:
        scores = scores + masks.bias.double()
    keep = dense_keep(c, masks, "cpu")
    if keep is None:
        weights = scores.softmax(-1)
    else:
        empty = ~keep.any(-1, keepdim=True)
        scores = scores.masked_fill(~keep, -math.inf).masked_fill(empty, 0.0)
        weights = scores.softmax(-1).masked_fill(empty, 0.0)
    return torch.autograd.grad(weights @ values, (q, k, v), grad.double())


def gradients(case: Case, masks: MaskTensors, grad: Tensor, *qkv: Tensor, path: str):
    leaves = [x.detach().requires_grad_() for x in qkv]
    output = Fused(path=path).make_attend(case, masks)(*leaves)
    return torch.autograd.grad(output, leaves, grad)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_gradients_are_those_of_float64(path: str, dtype: str, mask: str) -> None:
    for seq_len, kv_seq_len in [(49, 130), (130, 49), (100, 257)]:
        if "window" in mask:
            kv_seq_len = seq_len
        case = make_case(seq_len=seq_len, kv_seq_len=kv_seq_len, dtype=dtype, mask=mask)
        drawn = make_inputs(case)
        qkv = (drawn.q, drawn.k, drawn.v)
        found = gradients(case, drawn.masks, drawn.grad_output, *qkv, path=path)
        expected = expected_gradients(case.config, drawn.masks, drawn.grad_output, *qkv)
        for ours, theirs in zip(found, expected, strict=True):
            error = (ours.double() - theirs).norm() / theirs.norm()
            assert error <= LARGEST_ERROR_U[dtype] * case.config.dtype.unit_roundoff


@pytest.mark.parametrize("path", PATHS)
def test_a_query_without_keys_has_finite_gradients(path: str) -> None:
    case = make_case(seq_len=6, kv_seq_len=10, mask="keep:random")
    drawn = make_inputs(case)
    keep = drawn.masks.keep.clone()
    keep[..., 5, :] = False
    qkv = (drawn.q, drawn.k, drawn.v)
    dq, dk, dv = gradients(case, MaskTensors(keep=keep), drawn.grad_output, *qkv, path=path)
    assert not dq[:, :, 5].any()
    assert dk.isfinite().all()
    assert dv.isfinite().all()


@needs_kernels
@pytest.mark.parametrize("heads", [(4, 2), (1, 1)])
@pytest.mark.parametrize("mask", ["causal", "causal+window:70", "padding:0.3"])
def test_gradients_have_the_same_bits_whatever_the_number_of_threads(
    mask: str, heads: tuple[int, int]
) -> None:
    case = make_case(seq_len=500, mask=mask, head_dim=64, num_heads=heads[0], num_kv_heads=heads[1])
    drawn = make_inputs(case)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        qkv = (drawn.q, drawn.k, drawn.v)
        results.append(gradients(case, drawn.masks, drawn.grad_output, *qkv, path="auto"))
    torch.set_num_threads(before)
    for others in results[1:]:
        for one, two in zip(results[0], others, strict=True):
            assert torch.equal(one, two)


@needs_kernels
def test_the_operator_passes_torchs_own_checks() -> None:
    from implementations.fused.autograd import fused_attention

    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    k, v = (torch.randn(1, 1, 7, 8, requires_grad=True) for _ in range(2))
    arguments = (q, k, v, None, None, None, 0.3, [0, 100, 100], int(Path.PORTABLE), 1)
    torch.library.opcheck(
        fused_attention,
        arguments,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@needs_kernels
@pytest.mark.parametrize("mask", ["causal", "padding:0.5", "keep:random", "bias:random"])
def test_torch_compile_sees_one_graph_whose_results_and_gradients_are_those_of_eager(
    mask: str,
) -> None:
    case = make_case(seq_len=9, mask=mask)
    drawn = make_inputs(case)
    attend = Fused(path="portable").make_attend(case, drawn.masks)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    found = []
    for function in (attend, compiled):
        leaves = [x.detach().requires_grad_() for x in (drawn.q, drawn.k, drawn.v)]
        output = function(*leaves)
        found.append((output, *torch.autograd.grad(output, leaves, drawn.grad_output)))
    for eager, ours in zip(*found, strict=True):
        assert torch.equal(ours, eager)
    assert counter.frame_count == 1
    (node,) = (n for n in counter.graphs[0].graph.nodes if n.op == "call_function" and
               "fused_attention" in str(n.target))  # fmt: skip
    assert str(node.target) == "mha_bench.fused_attention.default"


@needs_kernels
def test_torch_compile_sees_one_operator_without_gradients() -> None:
    case = make_case(seq_len=9, mask="causal")
    drawn = make_inputs(case)
    attend = Fused(path="portable").make_attend(case, drawn.masks)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        eager = attend(drawn.q, drawn.k, drawn.v)
        assert torch.equal(compiled(drawn.q, drawn.k, drawn.v), eager)


@needs_kernels
def test_a_second_derivative_is_refused() -> None:
    case = make_case(seq_len=5)
    drawn = make_inputs(case)
    leaves = [x.detach().requires_grad_() for x in (drawn.q, drawn.k, drawn.v)]
    output = Fused(path="portable").make_attend(case, drawn.masks)(*leaves)
    (first, *_) = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@needs_kernels
@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_compiled_layer_around_the_operator_has_the_gradients_of_eager() -> None:
    case = make_case(seq_len=9, mask="causal")
    drawn = make_inputs(case)
    attend = Fused().make_attend(case, drawn.masks)

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q * 2, k.tanh(), v).transpose(1, 2).flatten(2)

    found = []
    for function in (layer, torch.compile(layer, fullgraph=True)):
        leaves = [x.detach().requires_grad_() for x in (drawn.q, drawn.k, drawn.v)]
        output = function(*leaves)
        found.append((output, *torch.autograd.grad(output.square().sum(), leaves)))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager)
