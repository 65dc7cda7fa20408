"""The SDPA implementations: what ran is named, and a forced backend never falls back."""

from __future__ import annotations

import pytest
import torch
from torch.backends import cuda
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.interface import Case
from implementations.sdpa import Sdpa, SdpaCudnn, SdpaEfficient, SdpaFlash, SdpaMath
from implementations.sdpa.backends import Only, short_name
from implementations.sdpa.probe import Kind, missing_kernel
from tests.implementations.exact import case_of, random_inputs


def on_cuda(case: Case) -> Case:
    return Case(config=case.config, mode=case.mode, device="cuda")


@pytest.mark.parametrize(
    ("axes", "kernel"),
    [
        ({}, "sdpa:flash"),
        ({"mask": "causal"}, "sdpa:flash"),
        ({"mask": "bias:random"}, "sdpa:flash"),
        ({"num_kv_heads": 2}, "sdpa:flash"),
        ({"dtype": "bfloat16"}, "sdpa:flash"),
        ({"mode": "forward_train", "dropout_p": 0.5}, "sdpa:math"),
    ],
)
def test_auto_names_the_backend_that_torch_chose(axes: dict[str, object], kernel: str) -> None:
    case = case_of(**axes)  # type: ignore[arg-type]
    assert Sdpa().kernel(case, random_inputs(case)) == kernel


def test_auto_runs_what_it_named() -> None:
    case = case_of("causal")
    inputs = random_inputs(case)
    auto, flash, math = (
        implementation.prepare(case, inputs)()
        for implementation in (Sdpa(), SdpaFlash(), SdpaMath())
    )
    assert Sdpa().kernel(case, inputs) == SdpaFlash().kernel(case, inputs)
    assert torch.equal(auto, flash)
    assert not torch.equal(auto, math)


def test_the_choice_is_named_for_layers_too() -> None:
    from harness.interface import LayerInputs, LayerWeights

    c = case_of().config
    x = torch.randn(c.batch_size, c.seq_len, c.hidden_size)
    weights = LayerWeights(torch.randn(3 * 32, 32), torch.randn(32, 32), num_heads=4)
    case = Case(config=c, scope="layer")  # type: ignore[arg-type]
    assert Sdpa().kernel(case, LayerInputs(x, x, weights)) == "sdpa:flash"


@pytest.mark.parametrize("implementation", [SdpaEfficient(), SdpaCudnn()])
def test_c61_a_backend_without_a_cpu_kernel_is_unsupported_though_its_flag_reads_true(
    implementation: Sdpa,
) -> None:
    assert cuda.mem_efficient_sdp_enabled()
    assert cuda.cudnn_sdp_enabled()
    assert implementation.unsupported_reasons(case_of()) == ("device=cpu (only cuda)",)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("implementation", [SdpaMath(), SdpaFlash(), SdpaEfficient(), SdpaCudnn()])
def test_without_a_card_the_reason_is_the_missing_device(implementation: Sdpa) -> None:
    (reason,) = implementation.unsupported_reasons(on_cuda(case_of()))
    assert reason.startswith("device=cuda (this machine")


def test_a_missing_kernel_is_told_with_the_case_and_torch_s_words() -> None:
    case = case_of(mode="forward_train", dropout_p=0.1)
    (reason,) = SdpaFlash().unsupported_reasons(case)
    assert "device=cpu, dtype=float32, head_dim=8" in reason
    assert "dropout_p=0.1" in reason
    assert "non-zero dropout" in reason


def test_the_probe_leaves_random_generators_and_switches_as_they_were() -> None:
    missing_kernel.cache_clear()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    kind = Kind.of(SDPBackend.MATH, case_of(mode="forward_train", dropout_p=0.5), True)
    assert missing_kernel(kind) == ()
    assert torch.equal(torch.rand(4), expected)
    assert cuda.flash_sdp_enabled()


def test_only_one_backend_is_on_inside_and_all_are_again_after_an_exception() -> None:
    def switches() -> list[bool]:
        return [
            cuda.math_sdp_enabled(),
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ]

    def fail_inside() -> None:
        with Only(SDPBackend.MATH):
            assert switches() == [True, False, False, False]
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert switches() == [True, True, True, True]


def test_only_leaves_off_what_a_user_had_switched_off() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        with Only(SDPBackend.FLASH_ATTENTION):
            assert cuda.flash_sdp_enabled()
        assert not cuda.flash_sdp_enabled()


def test_forcing_a_backend_equals_torch_s_own_context() -> None:
    case = case_of("bottom_right", seq_len=5, kv_seq_len=9)
    inputs = random_inputs(case)
    forced = SdpaMath().prepare(case, inputs)()
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.equal(forced, Sdpa().prepare(case, inputs)())


def test_grouped_heads_are_expanded_only_where_the_backend_has_none() -> None:
    case = case_of(num_kv_heads=2)
    assert Sdpa().notes(case) == SdpaFlash().notes(case) == ()
    assert SdpaMath().notes(case) == ("grouped heads expanded by torch",)
    assert SdpaEfficient().notes(case) == ("grouped heads expanded in the timed call",)


def test_short_names_are_the_words_of_our_implementations() -> None:
    names = [short_name(member) for member in (0, 1, 2, 3)]
    assert names == ["math", "flash", "efficient", "cudnn"]


@pytest.mark.gpu
def test_c48_native_grouped_heads_in_float32_are_named_as_what_runs() -> None:
    case = on_cuda(case_of(num_heads=24, num_kv_heads=12, head_dim=64, batch_size=4, seq_len=3081))
    q = torch.randn(4, 24, 3081, 64, device="cuda")
    kv = torch.randn(4, 12, 3081, 64, device="cuda")
    from harness.interface import AttentionInputs

    assert Sdpa().kernel(case, AttentionInputs(q, kv, kv)) == "sdpa:math"
