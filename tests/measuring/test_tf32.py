"""Where torch's products may be TF32, implementations that use them are judged by it, and say so.

The oracle counts in float64 on the CPU, which no such setting reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from harness.interface import AttentionImplementation, Case, Contract, products_are_tf32
from implementations.chunked import Chunked
from implementations.compiled import CompiledNaive
from implementations.fused import Fused
from implementations.naive import Naive
from implementations.sdpa import SdpaEfficient, SdpaMath
from implementations.torch_mha import TorchMha
from implementations.xformers import XformersCutlass
from tests.implementations.exact import case_of
from tests.judging import judged
from tests.problems import a_case


@pytest.fixture
def tf32_allowed() -> Iterator[None]:
    with products_in("tf32"):
        yield


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """torch's own products of float32 on CUDA: ``ieee`` or ``tf32``."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def on(device: str, dtype: str = "float32") -> Case:
    return Case(config=case_of(dtype=dtype).config, device=device)


@pytest.mark.usefixtures("tf32_allowed")
@pytest.mark.parametrize("kind", [Naive, Chunked, CompiledNaive, TorchMha])
def test_float32_on_cuda_is_judged_as_tf32_where_it_is_allowed(
    kind: type[AttentionImplementation],
) -> None:
    assert kind().contract(on("cuda")) is Contract.TF32
    assert kind().contract(on("cuda", "bfloat16")) is not Contract.TF32
    assert kind().contract(on("cpu")) is not Contract.TF32


def test_float32_stays_float32_where_it_is_not_allowed() -> None:
    assert not products_are_tf32(on("cuda"))
    assert Naive().contract(on("cuda")) is Contract.MATERIALISED
    assert Chunked().contract(on("cuda")) is Contract.FUSED


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("kind", [Naive, Chunked])
def test_on_the_cpu_the_row_never_says_tf32(
    kind: type[AttentionImplementation], precision: str
) -> None:
    with products_in(precision):
        judgement = judged(kind(), a_case())
    assert judgement.reasons == ()
    assert judgement.errors["o"]["contract"] in ("materialised", "fused")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("kind", [Naive, Chunked, SdpaMath, SdpaEfficient, XformersCutlass, Fused])
def test_c47_float32_is_right_with_tf32_on_and_off_and_the_row_says_which(
    kind: type[AttentionImplementation], precision: str
) -> None:
    """https://github.com/facebookresearch/xformers/pull/281"""
    case = a_case(hidden_size=256, num_heads=4, seq_len=1024, device="cuda")
    with products_in(precision):
        if kind().unsupported_reasons(case):
            return  # says so in the row
        judgement = judged(kind(), case)
    assert judgement.reasons == ()
    is_reduced = precision == "tf32" and kind is not Fused  # its products never are
    assert (judgement.errors["o"]["contract"] == "tf32") == is_reduced
