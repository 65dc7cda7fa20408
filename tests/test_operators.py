"""The operators that a call runs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.operators import operators_run


def test_operators_are_named_in_the_order_in_which_they_begin() -> None:
    x = torch.ones(4, 4)
    names = operators_run(lambda: torch.relu(x @ x))
    assert names.index("aten::mm") < names.index("aten::relu")
    assert names.index("aten::matmul") < names.index("aten::mm")


def test_the_backend_that_ran_is_seen() -> None:
    x = torch.randn(1, 2, 8, 16)

    def call() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            F.scaled_dot_product_attention(x, x, x)

    flash = operators_run(lambda: F.scaled_dot_product_attention(x, x, x))
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in flash
    assert "aten::_scaled_dot_product_attention_math" in operators_run(call)


def test_the_profiler_s_chatter_is_kept_off_the_standard_error(capfd: object) -> None:
    operators_run(lambda: torch.ones(2))
    assert capfd.readouterr().err == ""  # type: ignore[attr-defined]


def test_an_exception_of_the_call_passes_and_the_standard_error_comes_back(capfd: object) -> None:
    import os

    import pytest

    def fail() -> None:
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        operators_run(fail)
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"  # type: ignore[attr-defined]
