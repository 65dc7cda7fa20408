"""The support matrix, and claims held against real calls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from harness.attention import Case
from harness.findings import probe, probe_cases
from harness.settings import ImplementationSpec
from harness.support import HEAD_DIMS, MASKS, Support, _in_words, support_matrix, why
from harness.worker import ForkServer

SERVER = ForkServer()
EASY = Case.from_dict({"hidden_size": 64, "num_heads": 2, "seq_len": 8})


def fakes(*names: str) -> tuple[ImplementationSpec, ...]:
    return tuple(ImplementationSpec(name, f"tests.fakes:{name}") for name in names)


def matrix(*names: str) -> dict[str, Support]:
    lines = support_matrix(SERVER, fakes(*names), ("cpu",))
    return {line.implementation: line for line in lines}


def test_each_axis_lists_what_the_implementation_says_that_it_can_do() -> None:
    lines = matrix("Right", "TooModest", "AlwaysUnsupported", "NoSuchFake")
    assert lines["Right"] == Support(
        "Right",
        "cpu",
        ("float32", "bfloat16", "float16", "float64"),
        ("attention", "layer"),
        ("forward", "forward_train", "backward", "forward_backward"),
        MASKS,
        "1..512",
        grouped_heads=True,
        dropout=False,
    )
    assert lines["TooModest"].dtypes == ("float32",)
    assert lines["TooModest"].masks == ()
    assert lines["AlwaysUnsupported"] == Support(
        "AlwaysUnsupported", "cpu", reasons=("seq_len=32 (at most -1)",)
    )
    assert "module tests.fakes has no 'NoSuchFake'" in lines["NoSuchFake"].reasons[0]


def test_a_line_for_each_device_in_order() -> None:
    lines = support_matrix(SERVER, fakes("Right"), ("cpu", "cuda"))
    assert [line.device for line in lines] == ["cpu", "cuda"]


@pytest.mark.parametrize(
    ("able", "words"),
    [
        (HEAD_DIMS, "1..512"),
        ([d for d in HEAD_DIMS if d % 8 == 0], "8..512 by 8"),
        ([d for d in HEAD_DIMS if d <= 256], "1..256"),
        ([32, 64, 128], "32, 64, 128"),
        ([64], "64"),
        ([], "none"),
    ],
)
def test_head_dims_are_told_as_a_range_where_they_are_one(able: Sequence[int], words: str) -> None:
    assert _in_words(list(able)) == words


def test_why_gives_the_reasons_for_one_case() -> None:
    (modest,) = fakes("TooModest")
    assert why(SERVER, modest, EASY) == ()
    masked = Case.from_dict({**EASY.to_dict(), "mask": "causal"})
    assert why(SERVER, modest, masked) == ("mask=causal (needs causal; can do none)",)
    (absent,) = fakes("NoSuchFake")
    assert "has no 'NoSuchFake'" in why(SERVER, absent, EASY)[0]


def test_a_claim_that_a_real_call_contradicts_is_a_finding() -> None:
    names = ("Right", "ReturnsZeros", "Raises", "Segfaults", "TooModest", "AlwaysUnsupported")
    double = Case.from_dict({**EASY.to_dict(), "dtype": "float64"})
    found = probe(SERVER, fakes(*names), (EASY, double))
    said = {(finding.implementation, finding.case): str(finding) for finding in found}
    for case in (EASY, double):
        assert "but the result is wrong: o: " in said["ReturnsZeros", case]
        assert "but the call raised: RuntimeError: planted fault" in said["Raises", case]
        assert "but the process ended: " in said["Segfaults", case]
        assert "SIGSEGV" in said["Segfaults", case]
        assert "can't do" in said["AlwaysUnsupported", case]
        assert ("Right", case) not in said
    assert ("TooModest", EASY) not in said
    assert said["TooModest", double] == (
        f"TooModest says it can't do {double.id}, but the call gave the right result"
    )


def test_the_plain_implementations_keep_every_claim() -> None:
    kept = (
        ImplementationSpec("naive", "implementations.naive:Naive"),
        ImplementationSpec("sdpa", "implementations.sdpa:Sdpa"),
        ImplementationSpec("sdpa_math", "implementations.sdpa:SdpaMath"),
        ImplementationSpec("sdpa_flash", "implementations.sdpa:SdpaFlash"),
        ImplementationSpec("sdpa_cudnn", "implementations.sdpa:SdpaCudnn"),
        ImplementationSpec("chunked", "implementations.chunked:Chunked"),
        ImplementationSpec("torch_mha", "implementations.torch_mha:TorchMha"),
    )
    assert [str(finding) for finding in probe(SERVER, kept, probe_cases("cpu"))] == []


def test_asking_for_the_matrix_imports_no_torch_here() -> None:
    code = "import sys, harness.support; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
