"""The implementations that run on every CPU, as a user names them."""

from __future__ import annotations

from harness.interface import Implementation
from harness.plugins.registry import load_implementation
from harness.settings import ImplementationSpec

ON_CPU = {
    "naive": ImplementationSpec("naive", "implementations.naive:Naive"),
    "sdpa": ImplementationSpec("sdpa", "implementations.sdpa:Sdpa"),
    "sdpa_math": ImplementationSpec("sdpa_math", "implementations.sdpa:SdpaMath"),
    "sdpa_flash": ImplementationSpec("sdpa_flash", "implementations.sdpa:SdpaFlash"),
    "chunked": ImplementationSpec("chunked", "implementations.chunked:Chunked"),
    "chunked_small": ImplementationSpec(
        "chunked_small", "implementations.chunked:Chunked", {"query_chunk": 3, "key_chunk": 2}
    ),
}


def load(name: str) -> Implementation:
    return load_implementation(ON_CPU[name])
