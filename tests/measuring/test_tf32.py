"""Where torch's products may be TF32, implementations that use them are judged by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from harness.interface import AttentionImplementation, Case, Contract, products_are_tf32
from implementations.chunked import Chunked
from implementations.compiled import CompiledNaive
from implementations.naive import Naive
from implementations.torch_mha import TorchMha
from tests.implementations.exact import case_of


@pytest.fixture
def tf32_allowed() -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
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
