"""The xformers adapter as far as it goes without a card: masks, reasons, notes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from harness.interface import Case, MaskTensors, dense_keep
from implementations.xformers import (
    Xformers,
    XformersCutlass,
    XformersFa2,
    XformersFa3,
    XformersSplitK,
)
from tests.implementations.exact import (
    case_of,
    exact_attention,
    in_float64,
    mask_tensors,
    random_inputs,
)

needs_xformers = pytest.mark.skipif(
    importlib.util.find_spec("xformers") is None, reason="needs the xformers package"
)
without_card = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")

ALL = [Xformers, XformersCutlass, XformersFa2, XformersFa3, XformersSplitK]


@pytest.fixture(scope="module", autouse=True)
def _loaded_quietly() -> Iterator[None]:
    """xformers and triton warn of themselves while they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if importlib.util.find_spec("xformers") is not None:
            import xformers.ops.fmha  # noqa: F401
        yield


def on_cuda(mask: str = "none", mode: str = "forward", **axes: object) -> Case:
    case = case_of(mask, mode, **({"head_dim": 64, "dtype": "float16"} | axes))
    return Case(config=case.config, mode=case.mode, device="cuda")


@pytest.mark.parametrize("kind", ALL)
def test_on_the_cpu_the_reason_is_the_device(kind: type[Xformers]) -> None:
    assert kind().unsupported_reasons(case_of())[0] == "device=cpu (only cuda)"


@pytest.mark.parametrize("kind", ALL)
def test_a_missing_package_is_a_reason_with_its_install_command(
    kind: type[Xformers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("implementations.xformers.find_spec", lambda name: None)
    for case in (case_of(), on_cuda()):
        assert kind().unsupported_reasons(case)[-1] == (
            "xformers is not installed: pip install 'mha-bench[xformers]'"
        )


def test_asking_for_a_cpu_case_imports_no_xformers() -> None:
    code = (
        "import sys; from implementations.xformers import Xformers; "
        "from tests.implementations.exact import case_of; "
        "assert Xformers().unsupported_reasons(case_of()); assert 'xformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_xformers
@without_card
@pytest.mark.parametrize("kind", ALL)
def test_without_a_card_the_reasons_say_what_is_missing(kind: type[Xformers]) -> None:
    reasons = kind().unsupported_reasons(on_cuda())
    assert reasons[0].startswith("device=cuda (this machine")


@needs_xformers
@without_card
def test_c62_a_library_that_does_not_load_is_told_with_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from xformers import _cpp_lib

    from implementations.xformers.operators import library_failures

    failure = RuntimeError(
        "xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
        "    PyTorch 2.10.0 (you have 2.13.0)\n  Please reinstall"
    )
    monkeypatch.setattr(_cpp_lib, "_cpp_library_load_exception", failure)
    library_failures.cache_clear()
    try:
        reasons = Xformers().unsupported_reasons(on_cuda())
    finally:
        library_failures.cache_clear()
    assert any(
        reason.startswith(
            "xformers' library does not load: built for: PyTorch 2.10.0 (you have 2.13.0); install "
        )
        for reason in reasons
    )


def limits(kind: type[Xformers], case: Case) -> str:
    return "; ".join(kind().unsupported_reasons(case))


@needs_xformers
@pytest.mark.parametrize(
    ("kind", "case", "expected"),
    [
        (XformersFa2, on_cuda(head_dim=320), "head_dim=320 (at most 256)"),
        (XformersFa3, on_cuda(head_dim=16), "head_dim=16 (at least 32)"),
        (XformersFa3, on_cuda(dtype="float32"), "dtype=float32 (only bfloat16, float16)"),
        (XformersFa2, on_cuda(head_dim=20), "head_dim=20 (a multiple of 8)"),
        (XformersSplitK, on_cuda(head_dim=24), "head_dim=24 (only 16, 32, 64, 128, 256, 512)"),
        (XformersFa2, on_cuda("bias:random"), "mask=bias:random (it takes no dense bias)"),
        (XformersSplitK, on_cuda(mode="backward"), "it has no backward pass"),
        (
            XformersFa3,
            on_cuda(mode="forward_train", dropout_p=0.1),
            "dropout_p=0.1 (only 0)",
        ),
        (Xformers, on_cuda(batch_size=65536), "batch_size=65536 (at most 65535"),
        (Xformers, on_cuda(seq_len=0, kv_seq_len=4), "seq_len=0 (at least 1)"),
        (XformersFa2, on_cuda("top_left", kv_seq_len=9), "equal number of"),
    ],
)
def test_a_limit_of_an_operator_is_a_reason_with_value_and_limit(
    kind: type[Xformers], case: Case, expected: str
) -> None:
    assert expected in limits(kind, case)


@needs_xformers
def test_cutlass_takes_what_the_others_refuse() -> None:
    for case in (
        on_cuda("bias:random+padding", "forward_backward", dtype="float32", head_dim=320),
        on_cuda("top_left", kv_seq_len=9),
        on_cuda(num_kv_heads=2),
    ):
        assert "cutlass" not in limits(XformersCutlass, case)


@needs_xformers
def test_kernels_that_are_torch_s_own_are_marked() -> None:
    case = on_cuda()
    kernel = XformersCutlass().kernel(case, None)  # type: ignore[arg-type]
    assert kernel == "sdpa:efficient via xformers cutlassF-pt"
    assert XformersCutlass().notes(case) == ("torch's own kernel, the same as sdpa_efficient",)
    assert XformersSplitK().notes(case) == ()


@needs_xformers
def test_work_beside_the_kernel_is_noted() -> None:
    grouped = on_cuda(mode="forward_backward", num_kv_heads=2)
    assert "grouped heads expanded" in XformersCutlass().notes(grouped)[0]
    assert "dense bias" in XformersSplitK().notes(on_cuda("causal"))[0]
    assert "dense bias" not in " ".join(XformersCutlass().notes(on_cuda("causal")))


@needs_xformers
def test_the_version_names_xformers_and_torch() -> None:
    import xformers

    assert Xformers().version() == f"xformers {xformers.__version__}, torch {torch.__version__}"


@needs_xformers
@pytest.mark.parametrize(
    ("mask", "seq_len", "kv_seq_len"),
    [
        ("top_left", 2, 5),
        ("bottom_right", 2, 5),
        ("top_left", 5, 2),
        ("bottom_right", 5, 2),
        ("causal", 6, 6),
        ("causal+window:3", 6, 6),
        ("bottom_right+window:2", 3, 7),
        ("window:3", 6, 6),
    ],
)
def test_a_mask_class_of_xformers_means_what_our_mask_means(
    mask: str, seq_len: int, kv_seq_len: int
) -> None:
    from implementations.xformers.bias import positional_bias

    c = case_of(mask, seq_len=seq_len, kv_seq_len=kv_seq_len).config
    theirs = positional_bias(c).materialize((seq_len, kv_seq_len)) == 0
    ours = dense_keep(c, mask_tensors(c), "cpu")
    assert ours is not None
    assert torch.equal(theirs, ours[0, 0])


@needs_xformers
def test_c46_the_two_causal_masks_of_xformers_count_keys_as_documented() -> None:
    from xformers.ops.fmha import attn_bias

    def counts(mask: object, *shape: int) -> list[int]:
        return (mask.materialize(shape) == 0).sum(dim=-1).tolist()  # type: ignore[attr-defined, no-any-return]

    assert counts(attn_bias.LowerTriangularMask(), 2, 5) == [1, 2]
    assert counts(attn_bias.LowerTriangularFromBottomRightMask(), 2, 5) == [4, 5]
    assert counts(attn_bias.LowerTriangularFromBottomRightMask(), 5, 2) == [0, 0, 0, 1, 2]


@needs_xformers
def test_c45_a_dense_bias_of_odd_length_is_padded_and_sliced_to_the_full_shape() -> None:
    from xformers.ops.fmha import cutlass

    from implementations.xformers.bias import applied_mask

    case = case_of("padding:0.5+bias:random", batch_size=5, seq_len=77)
    mask = applied_mask(case, mask_tensors(case.config), cutlass.FwOp)
    assert tuple(mask.bias.shape) == (5, 4, 77, 77)
    assert mask.bias.stride(-2) == 80
    reasons: list[str] = []
    cutlass._check_bias_alignment(reasons, mask.bias)
    assert reasons == []


@needs_xformers
def test_rows_without_keys_are_emptied_after_the_kernel() -> None:
    from xformers.ops.fmha import cutlass

    from implementations.xformers.bias import applied_mask

    case = case_of("bottom_right", seq_len=5, kv_seq_len=2)
    mask = applied_mask(case, mask_tensors(case.config), cutlass.FwOp)
    assert not bool(torch.isneginf(mask.bias).all(dim=-1).any())
    emptied = mask.empty_excluded_rows(torch.ones(3, 4, 5, 8))
    assert (emptied == 0).all(dim=-1)[0, 0].tolist() == [True, True, True, False, False]


@pytest.mark.gpu
@needs_xformers
@pytest.mark.parametrize("kind", [Xformers, XformersCutlass])
@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
def test_c45_a_bias_of_odd_length_gives_the_right_result_on_a_card(
    kind: type[Xformers], mode: str
) -> None:
    sizes = {"batch_size": 133, "num_heads": 8, "seq_len": 77}
    case = on_cuda("bias:random", mode, **sizes)
    if reasons := kind().unsupported_reasons(case):
        assert any("library does not load" in reason for reason in reasons)
        return
    inputs = random_inputs(case)
    on_card = replace(
        inputs,
        **{name: getattr(inputs, name).detach().cuda() for name in ("q", "k", "v")},
        masks=MaskTensors(bias=inputs.masks.bias.cuda() if inputs.masks.bias is not None else None),
    )
    leaves = [x.requires_grad_(mode != "forward") for x in (on_card.q, on_card.k, on_card.v)]
    output = kind().prepare(case, on_card)()
    gap = output.detach().cpu().double() - exact_attention(case.config, in_float64(inputs)).detach()
    assert float(gap.abs().max()) < 5e-3
    if mode != "forward":
        for gradient in torch.autograd.grad(output, leaves, torch.ones_like(output)):
            assert bool(torch.isfinite(gradient).all())
