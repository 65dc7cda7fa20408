"""The flash_attn adapter, against a package of the same interface that computes on the CPU."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.errors import InvalidValueError
from harness.interface import Case
from implementations import flash_attn
from implementations.flash_attn import FlashAttn
from tests.implementations.exact import case_of, exact_attention, random_inputs


class OnCpu(FlashAttn):
    """The adapter as it is, allowed to run on what the stand-in computes with."""

    devices = frozenset({"cpu"})


def stand_in(returns_lse: bool, unbounded: int | None, with_dropout: bool) -> Any:
    """A ``flash_attn_func`` of that generation's signature: ``[B, L, H, D]``, bottom right."""

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int | None, int | None] = (unbounded, unbounded),
        **others: float,
    ) -> Any:
        assert set(others) == ({"dropout_p"} if with_dropout else set())
        assert q.shape[2] % k.shape[2] == 0
        assert q.stride(-1) == 1
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
        scores = torch.einsum("blhd,bshd->bhls", q.float(), k.float()) * (softmax_scale or 1.0)
        distance = torch.arange(k.shape[1])[None] - (
            torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        )
        left, right = window_size
        excluded = distance > 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
        if left != unbounded:
            excluded = excluded | (distance < -int(left or 0))
        if right != unbounded:
            excluded = excluded | (distance > int(right or 0))
        weights = torch.softmax(scores.masked_fill(excluded, float("-inf")), dim=-1).nan_to_num(0)
        output = torch.einsum("bhls,bshd->blhd", weights, v.float()).to(q.dtype)
        return (output, None) if returns_lse else output

    return attention


GENERATIONS = {2: (False, -1, True), 3: (False, -1, False), 4: (True, None, False)}


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A generation whose package is installed and computes on the CPU."""
    chosen: int = request.param
    package = flash_attn._PACKAGES[chosen]
    module = ModuleType(package.module)
    module.flash_attn_func = stand_in(*GENERATIONS[chosen])  # type: ignore[attr-defined]
    for name in ("flash_attn", package.module):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(flash_attn, "_installed_version", lambda package: "9.9")
    monkeypatch.setattr(flash_attn, "_failures", lambda *kind: ())
    return chosen


@pytest.mark.parametrize(
    ("mask", "axes"),
    [
        ("none", {}),
        ("causal", {}),
        ("bottom_right", {"seq_len": 5, "kv_seq_len": 11}),
        ("bottom_right", {"seq_len": 11, "kv_seq_len": 5}),
        ("causal+window:3", {}),
        ("bottom_right+window:2", {"seq_len": 5, "kv_seq_len": 11}),
        ("window:3", {}),
        ("causal", {"num_kv_heads": 2}),
        ("none", {"scale": 0.7}),
    ],
)
def test_layout_masks_and_scale_reach_every_generation_as_it_takes_them(
    generation: int, mask: str, axes: dict[str, Any]
) -> None:
    case = case_of(mask, dtype="float16", **axes)
    implementation = OnCpu(generation)
    assert implementation.unsupported_reasons(case) == ()
    inputs = random_inputs(case)
    output = implementation.prepare(case, inputs)()
    assert output.shape == inputs.q.shape
    expected = exact_attention(case.config, inputs)
    assert float((output.double() - expected).abs().max()) < 2e-3


def test_version_and_kernel_name_the_generation(generation: int) -> None:
    case = case_of(dtype="float16")
    implementation = OnCpu(generation)
    distribution = flash_attn._PACKAGES[generation].distribution
    assert implementation.version() == f"{distribution} 9.9, torch {torch.__version__}"
    assert implementation.kernel(case, random_inputs(case)) == f"flash_attn:{generation}"


def on_cuda(mask: str = "none", **axes: Any) -> Case:
    case = case_of(mask, **({"dtype": "float16"} | axes))
    return Case(config=case.config, mode=case.mode, device="cuda")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_missing_package_is_a_reason_with_its_install_command(
    generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash_attn, "_installed_version", lambda package: None)
    for case in (case_of(dtype="float16"), on_cuda()):
        reason = FlashAttn(generation).unsupported_reasons(case)[-1]
        assert "is not installed: " in reason
        assert flash_attn._PACKAGES[generation].install in reason


@pytest.mark.parametrize(
    ("generation", "case", "reason"),
    [
        (2, on_cuda(dtype="float32"), "dtype=float32 (only bfloat16, float16)"),
        (2, on_cuda(head_dim=264), "head_dim=264 (at most 256)"),
        (2, on_cuda(head_dim=20), "head_dim=20 (a multiple of 8)"),
        (2, on_cuda("top_left", kv_seq_len=9), "needs top_left"),
        (2, on_cuda("bias:random"), "needs bias"),
        (3, on_cuda(mode="forward_train", dropout_p=0.1), "dropout_p=0.1 (only 0 in generation 3)"),
        (4, on_cuda(kv_seq_len=0), "kv_seq_len=0 (at least 1)"),
    ],
)
def test_a_limit_is_a_reason_with_value_and_limit(generation: int, case: Case, reason: str) -> None:
    assert reason in "; ".join(FlashAttn(generation).unsupported_reasons(case))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_an_installed_package_without_a_card_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attn, "_installed_version", lambda package: "9.9")
    (reason,) = FlashAttn(2).unsupported_reasons(on_cuda())
    assert reason.startswith("device=cuda (this machine")


def test_an_unknown_generation_lists_the_known_ones() -> None:
    with pytest.raises(InvalidValueError, match="choices: 2, 3, 4"):
        FlashAttn(5)
