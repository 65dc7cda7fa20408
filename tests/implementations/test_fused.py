"""The fused kernels against float64, on every path that this machine can run.

The bar is the a-priori bound of a kernel with float32 sums: |e| <= eta (P|V|) + tau (1 + sum |v|).
"""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.attention import AttentionConfig, Case, DType, Mask, Scope
from harness.errors import InvalidValueError
from harness.inputs.sets import make_inputs
from harness.interface import Contract
from harness.tensors import AttentionInputs, MaskTensors, dense_keep
from implementations.fused import Fused
from implementations.fused.native import Path, library, runnable_paths
from implementations.fused.selection import Precision, select

PATHS = [path.name.lower() for path in runnable_paths()]
DTYPES = ["float32", "bfloat16", "float16"]
MASKS = [
    "none",
    "top_left",
    "bottom_right",
    "bottom_right+window:7",
    "top_left+window:40",
    "padding:0.5",
    "keep:random",
    "document",
    "bias:random",
    "bottom_right+window:30+padding:0.7+keep:random+bias:random",
]
UNDERFLOW = {"float32": 2.0**-150, "bfloat16": 2.0**-134, "float16": 2.0**-25}


def make_case(**axes: object) -> Case:
    axes = {"num_heads": 4, "num_kv_heads": 2, "batch_size": 2, "head_dim": 20} | axes
    axes.setdefault("hidden_size", axes["num_heads"] * axes["head_dim"])
    axes["mask"] = Mask.parse(axes.get("mask", "none"))
    return Case(config=AttentionConfig(**axes))


def expected_and_bound(c: AttentionConfig, q: Tensor, k: Tensor, v: Tensor, masks: MaskTensors):
    """Output in float64 ``[B, H, L, D]``, and the largest error allowed at each element."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(c.group_size, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * c.scale
    if masks.bias is not None:
        scores = scores + masks.bias.double()
    keep = dense_keep(c, masks, "cpu")
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    weights = torch.nan_to_num(scores.softmax(-1), nan=0.0)  # a row without keys is 0
    finite = torch.where(scores.isinf(), 0.0, scores).abs()
    products = q.abs() @ k.abs().transpose(-1, -2) * abs(c.scale)
    u32, u = 2.0**-24, 0.0 if c.dtype is DType.FLOAT32 else c.dtype.unit_roundoff
    row = 2 * u32 * (math.sqrt(c.head_dim) * products.amax(-1) + 2 * finite.amax(-1))
    eta = row + (math.sqrt(c.kv_seq_len) + 4) * u32 + 2 * u
    underflow = UNDERFLOW[c.dtype] * (1 + v.abs().sum(-2, keepdim=True))
    return weights @ v, eta[..., None] * (weights @ v.abs()) + underflow


def attend(case: Case, inputs: AttentionInputs, **options: str) -> Tensor:
    return Fused(**options).prepare(case, inputs)()


def assert_within_bound(case: Case, inputs: AttentionInputs, output: Tensor) -> None:
    expected, bound = expected_and_bound(case.config, inputs.q, inputs.k, inputs.v, inputs.masks)
    share = ((output.double() - expected).abs() / bound).max().item()
    assert share <= 1.0, f"error is {share:.3g} of the bound for {case.id}"


needs_kernels = pytest.mark.skipif(
    library() is None, reason="the fused kernels were not built: no C++ compiler"
)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_kernels_are_built_where_there_is_a_compiler() -> None:
    assert library() is not None
    assert Path.PORTABLE in runnable_paths()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_every_mask_stays_within_the_bound(path: str, dtype: str, mask: str) -> None:
    for seq_len, kv_seq_len in [(49, 130), (130, 49), (33, 65), (5, 3), (1, 300)]:
        if "document" in mask or "window" in mask or mask == "none":
            kv_seq_len = seq_len
        if mask in ("top_left", "bottom_right") and seq_len == kv_seq_len:
            mask = "causal"
        case = make_case(seq_len=seq_len, kv_seq_len=kv_seq_len, dtype=dtype, mask=mask)
        inputs = make_inputs(case)
        assert_within_bound(case, inputs, attend(case, inputs, path=path))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 47, 48, 49, 63, 64, 65, 127, 129, 257])
def test_lengths_around_every_tile_size_are_right(path: str, dtype: str, length: int) -> None:
    for mask in ("none", "causal"):
        case = make_case(seq_len=length, dtype=dtype, mask=mask)
        inputs = make_inputs(case)
        assert_within_bound(case, inputs, attend(case, inputs, path=path))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("head_dim", [1, 3, 16, 20, 63, 64, 80, 96, 128, 200, 256, 300, 512])
def test_any_head_dim_is_right(path: str, dtype: str, head_dim: int) -> None:
    case = make_case(seq_len=7, kv_seq_len=70, head_dim=head_dim, dtype=dtype)
    inputs = make_inputs(case)
    assert_within_bound(case, inputs, attend(case, inputs, path=path))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_strided_and_expanded_inputs_give_the_contiguous_result(path: str, dtype: str) -> None:
    case = make_case(seq_len=33, kv_seq_len=65, dtype=dtype, mask="top_left")
    plain = make_inputs(case)
    expected = attend(case, plain, path=path)
    views = AttentionInputs(
        plain.q.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
        plain.k.transpose(-1, -2).contiguous().transpose(-1, -2),
        torch.cat([plain.v, plain.v], dim=-1)[..., : plain.v.shape[-1]],
    )
    assert torch.equal(attend(case, views, path=path), expected)
    repeated = AttentionInputs(plain.q, plain.k, plain.v[:, :, :1].expand_as(plain.v))
    assert_within_bound(case, repeated, attend(case, repeated, path=path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("seq_len", "kv_seq_len"), [(0, 5), (5, 0), (0, 0)])
def test_empty_lengths_give_empty_outputs_or_zeros(
    path: str, seq_len: int, kv_seq_len: int
) -> None:
    case = make_case(seq_len=seq_len, kv_seq_len=kv_seq_len)
    output = attend(case, make_inputs(case), path=path)
    assert output.shape == (2, 4, seq_len, 20)
    assert not output.any()


@pytest.mark.parametrize("path", PATHS)
def test_an_empty_batch_gives_an_empty_output(path: str) -> None:
    case = make_case(seq_len=4, batch_size=0)
    assert attend(case, make_inputs(case), path=path).shape == (0, 4, 4, 20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_a_row_without_keys_is_zero_and_the_others_do_not_notice(path: str, dtype: str) -> None:
    case = make_case(seq_len=6, kv_seq_len=10, dtype=dtype, mask="keep:random")
    drawn = make_inputs(case)
    keep = drawn.masks.keep.clone()
    keep[..., 5, :] = False
    inputs = AttentionInputs(drawn.q, drawn.k, drawn.v, MaskTensors(keep=keep))
    output = attend(case, inputs, path=path)
    assert not output[:, :, 5].any()
    assert_within_bound(case, inputs, output)


@pytest.mark.parametrize("path", PATHS)
def test_a_bias_row_of_the_lowest_number_is_uniform_not_masked(path: str) -> None:
    case = make_case(seq_len=3, batch_size=1, mask="bias:random")
    drawn = make_inputs(case)
    bias = torch.zeros(3, 3)
    bias[0] = torch.finfo(torch.float32).min
    masks = MaskTensors(bias=bias, declared_bias=True)
    output = attend(case, AttentionInputs(drawn.q, drawn.k, drawn.v, masks), path=path)
    mean = drawn.v.mean(2).repeat_interleave(2, dim=1)
    torch.testing.assert_close(output[:, :, 0], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("poison", ["nan", "inf", "-inf"])
def test_nan_and_inf_reach_their_rows_and_no_others(path: str, dtype: str, poison: str) -> None:
    case = make_case(seq_len=40, kv_seq_len=70, dtype=dtype)
    drawn = make_inputs(case)
    q = drawn.q.clone()
    q[1, 2, 17, 3] = float(poison)
    output = attend(case, AttentionInputs(q, drawn.k, drawn.v), path=path)
    assert output[1, 2, 17].isnan().all()
    clean = attend(case, drawn, path=path)
    output[1, 2, 17] = clean[1, 2, 17]
    torch.testing.assert_close(output, clean)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", ["padding:0.5", "keep:random", "bias:random"])
def test_finite_garbage_under_a_mask_never_leaks(path: str, mask: str) -> None:
    case = make_case(seq_len=21, kv_seq_len=40, batch_size=1, mask=mask)
    drawn = make_inputs(case)
    masks = MaskTensors(
        key_padding=None if drawn.masks.key_padding is None else drawn.masks.key_padding.clone(),
        keep=None if drawn.masks.keep is None else drawn.masks.keep.clone(),
        bias=None if drawn.masks.bias is None else drawn.masks.bias.clone(),
    )
    if masks.key_padding is not None:
        masks.key_padding[:, 5] = False
    if masks.keep is not None:
        masks.keep[..., 5] = False
    if masks.bias is not None:
        masks.bias[..., 5] = -math.inf
    k, v = drawn.k.clone(), drawn.v.clone()
    k[:, :, 5], v[:, :, 5] = 1e10, 1e10
    clean = attend(case, AttentionInputs(drawn.q, drawn.k, drawn.v, masks), path=path)
    garbage = attend(case, AttentionInputs(drawn.q, k, v, masks), path=path)
    torch.testing.assert_close(garbage, clean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_float16_scores_beyond_its_range_do_not_overflow(path: str) -> None:
    case = make_case(seq_len=4, head_dim=128, dtype="float16")
    full = torch.full((2, 4, 4, 128), 32.0, dtype=torch.float16)
    output = attend(case, AttentionInputs(full, full[:, :2], full[:, :2]), path=path)
    assert torch.equal(output, full)


@pytest.mark.parametrize("path", PATHS)
def test_scale_zero_gives_the_mean_of_the_values(path: str) -> None:
    case = make_case(seq_len=9, scale=0.0)
    inputs = make_inputs(case)
    mean = inputs.v.mean(2, keepdim=True).repeat_interleave(2, dim=1).expand(2, 4, 9, 20)
    torch.testing.assert_close(attend(case, inputs, path=path), mean, rtol=1e-5, atol=1e-6)


def assert_threads_change_nothing(case: Case, path: str) -> None:
    inputs = make_inputs(case)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(attend(case, inputs, path=path))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("path", PATHS)
def test_threads_do_not_change_a_single_bit(path: str) -> None:
    assert_threads_change_nothing(make_case(seq_len=200, mask="causal", head_dim=64), path)


@needs_kernels
@settings(max_examples=40, deadline=None)
@given(
    seq_len=st.integers(1, 90),
    kv_seq_len=st.integers(1, 150),
    head_dim=st.integers(1, 70),
    groups=st.sampled_from([(1, 1), (3, 1), (4, 2), (2, 2)]),
    dtype=st.sampled_from(DTYPES),
    path=st.sampled_from(PATHS),
    mask=st.sampled_from(["none", "top_left", "bottom_right", "padding:0.4", "bias:random"]),
)
def test_any_shape_stays_within_the_bound(
    seq_len: int,
    kv_seq_len: int,
    head_dim: int,
    groups: tuple[int, int],
    dtype: str,
    path: str,
    mask: str,
) -> None:
    case = make_case(
        seq_len=seq_len,
        kv_seq_len=kv_seq_len,
        head_dim=head_dim,
        num_heads=groups[0],
        num_kv_heads=groups[1],
        dtype=dtype,
        mask=mask,
    )
    inputs = make_inputs(case)
    assert_within_bound(case, inputs, attend(case, inputs, path=path))


def test_an_unknown_option_is_refused_with_the_choices() -> None:
    with pytest.raises(InvalidValueError, match="choices: full, bf16x3"):
        Fused(precision="half")
    with pytest.raises(InvalidValueError, match="choices: auto, portable"):
        Fused(path="sse9")


def test_the_kernel_that_ran_is_named() -> None:
    case = make_case(seq_len=4)
    assert Fused(path="portable").kernel(case, make_inputs(case)) == "fused portable float32"


def test_a_missing_library_is_a_reason_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("implementations.fused.implementation.library", lambda: None)
    (reason,) = Fused().unsupported_reasons(make_case(seq_len=4))
    assert "C++17 compiler" in reason


@needs_kernels
def test_a_path_that_the_machine_lacks_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "implementations.fused.implementation.runnable_paths", lambda: (Path.PORTABLE,)
    )
    (reason,) = Fused(path="avx2").unsupported_reasons(make_case(seq_len=4))
    assert reason == "path=avx2 (this machine can run portable)"


@needs_kernels
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_the_layer_is_that_of_sdpa_and_copies_no_heads(mask: str) -> None:
    config = AttentionConfig(
        hidden_size=48, num_heads=6, num_kv_heads=3, seq_len=37, batch_size=2, mask=Mask.parse(mask)
    )
    case = Case(config=config, scope=Scope.LAYER)
    inputs = make_inputs(case)
    attended = []

    class Spy(Fused):
        def make_attend(self, case: Case, masks: MaskTensors):
            attend = super().make_attend(case, masks)

            def keep(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                attended.append(attend(q, k, v))
                return attended[-1]

            return keep

    def by_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=mask == "causal", enable_gqa=True
        )

    expected = Fused().make_layer(case, inputs.weights, by_sdpa)(inputs.x, inputs.x_kv)
    torch.testing.assert_close(Spy().prepare(case, inputs)(), expected)
    concatenated = attended[0].transpose(1, 2).flatten(2)
    assert concatenated.data_ptr() == attended[0].data_ptr()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_few_queries_on_many_keys_are_right(path: str, dtype: str) -> None:
    everything = "bottom_right+window:700+padding:0.7+keep:random+bias:random"
    for seq_len, mask in [
        (1, "none"),
        (3, "bottom_right"),
        (4, "padding:0.5"),
        (2, "bias:random"),
        (7, "bottom_right+window:30"),
        (16, everything),
        (32, "top_left"),
    ]:
        for head_dim in (16, 20, 64):
            case = make_case(
                seq_len=seq_len, kv_seq_len=1111, dtype=dtype, mask=mask, head_dim=head_dim
            )
            inputs = make_inputs(case)
            assert_within_bound(case, inputs, attend(case, inputs, path=path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("seq_len", [2, 12])
def test_threads_do_not_change_a_single_bit_of_few_queries_on_many_keys(
    path: str, seq_len: int
) -> None:
    assert_threads_change_nothing(make_case(seq_len=seq_len, kv_seq_len=5000, head_dim=64), path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("num_heads", [1, 2, 5, 8])
def test_queries_of_a_group_that_share_their_keys_are_right(
    path: str, dtype: str, num_heads: int
) -> None:
    for head_dim in (32, 48, 208):  # pairs of vectors, one left over, more than registers hold
        case = make_case(
            num_heads=num_heads,
            num_kv_heads=1,
            seq_len=1,
            kv_seq_len=600,
            head_dim=head_dim,
            dtype=dtype,
        )
        inputs = make_inputs(case)
        assert_within_bound(case, inputs, attend(case, inputs, path=path))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_masks_that_are_broadcast_or_strided_are_those_of_their_dense_copies(
    path: str, dtype: str
) -> None:
    for seq_len in (2, 50):
        case = make_case(
            seq_len=seq_len, kv_seq_len=130, dtype=dtype, mask="keep:random+bias:random"
        )
        drawn = make_inputs(case)
        keep = torch.rand(1, 4, 1, 130) < 0.7
        bias = torch.randn(130, seq_len).to(drawn.q.dtype).t()
        dense_bias = bias.expand(2, 4, seq_len, 130).contiguous()
        dense_keep = keep.expand(2, 4, seq_len, 130).contiguous()
        outputs = [
            attend(
                case,
                AttentionInputs(
                    drawn.q, drawn.k, drawn.v, MaskTensors(keep=k, bias=b, declared_bias=True)
                ),
                path=path,
            )
            for k, b in ((keep, bias), (dense_keep, dense_bias))
        ]
        assert torch.equal(*outputs)


@pytest.mark.parametrize("path", PATHS)
def test_one_nan_query_among_few_stays_alone(path: str) -> None:
    for seq_len in (2, 9):
        case = make_case(seq_len=seq_len, kv_seq_len=700)
        drawn = make_inputs(case)
        q = drawn.q.clone()
        q[0, 1, 0, 0] = math.nan
        output = attend(case, AttentionInputs(q, drawn.k, drawn.v), path=path)
        assert output[0, 1, 0].isnan().all()
        assert output.isnan().sum() == 20


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("seq_len", "kv_seq_len"), [(1, 90), (60, 90), (12, 1300)])
def test_log_sum_exp_is_that_of_float64(path: str, seq_len: int, kv_seq_len: int) -> None:
    config = make_case(seq_len=seq_len, kv_seq_len=kv_seq_len).config
    inputs = make_inputs(Case(config=config))
    output = torch.empty(2, 4, seq_len, 20)
    lse = torch.empty(2, 4, seq_len)
    Fused(path=path).plan(config, MaskTensors()).forward(inputs.q, inputs.k, inputs.v, output, lse)
    keys = inputs.k.double().repeat_interleave(2, dim=1)
    expected = (inputs.q.double() @ keys.transpose(-1, -2) * config.scale).logsumexp(-1)
    torch.testing.assert_close(lse.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(Path.AMX not in runnable_paths(), reason="needs a processor with AMX")
def test_three_products_are_exact_to_about_1e_5() -> None:
    case = make_case(seq_len=300, head_dim=64, mask="causal")
    inputs = make_inputs(case)
    exact, _ = expected_and_bound(case.config, inputs.q, inputs.k, inputs.v, inputs.masks)
    fused = Fused(precision="bf16x3")
    error = (fused.prepare(case, inputs)().double() - exact).norm() / exact.norm()
    assert error <= 1.5e-5
    assert fused.contract(case) is Contract.BF16X3
    assert Fused().contract(case) is Contract.FUSED


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "precision", "seq_len", "kv_seq_len", "tiles"),
    [
        ("bfloat16", "full", 4, 8192, False),
        ("bfloat16", "full", 16, 8192, True),
        ("float32", "full", 16, 8192, False),
        ("float32", "bf16x3", 16, 8192, True),
        ("float32", "full", 128, 128, True),
        ("bfloat16", "full", 16, 16, False),
    ],
)
def test_tiles_are_chosen_where_there_is_enough_to_fill_them(
    dtype: str, precision: str, seq_len: int, kv_seq_len: int, tiles: bool
) -> None:
    case = make_case(seq_len=seq_len, kv_seq_len=kv_seq_len, head_dim=64, dtype=dtype)
    every_path = tuple(Path)
    chosen = select(every_path, None, case.config, Precision(precision))
    assert (chosen.path is Path.AMX) == tiles
    vectors = tuple(path for path in Path if path is not Path.AMX)
    assert select(vectors, None, case.config, Precision(precision)).path is Path.AVX512


@pytest.mark.skipif(Path.AMX not in runnable_paths(), reason="needs a processor with AMX")
@pytest.mark.parametrize("scope", list(Scope))
def test_the_row_says_when_values_were_beyond_tiles(scope: Scope) -> None:
    config = make_case(seq_len=64, head_dim=64, dtype="bfloat16").config
    case = Case(config=config, scope=scope)
    assert Fused().kernel(case, make_inputs(case)) == "fused amx bfloat16"
    tiny = make_inputs(case)
    for x in tiny.leaves.values():  # a layer's keys and values are products of two of them
        x.mul_(2.0**-100 if scope is Scope.ATTENTION else 2.0**-50)
    assert Fused().kernel(case, tiny) == "fused avx512 bfloat16 (values beyond amx)"


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", PATHS)
def test_what_a_causal_row_cannot_see_changes_not_even_its_rounding(path: str, dtype: str) -> None:
    case = make_case(seq_len=150, head_dim=64, dtype=dtype, mask="causal")
    inputs = make_inputs(case)
    call = Fused(path=path).prepare(case, inputs)
    before = call()
    for first_hidden in (1, 31, 32, 70, 149):
        inputs.k[..., first_hidden:, :] *= 3
        inputs.v[..., first_hidden:, :] -= 5
        seen = slice(first_hidden)
        assert torch.equal(call()[..., seen, :], before[..., seen, :])
        inputs = make_inputs(case)
        call = Fused(path=path).prepare(case, inputs)
