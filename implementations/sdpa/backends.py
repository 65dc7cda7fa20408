"""The backends of SDPA, and the context that leaves only one of them switched on."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from torch.backends import cuda
from torch.nn.attention import SDPBackend

# Of each backend: is it on, and switch it.
_SWITCHES: dict[SDPBackend, tuple[Callable[[], bool], Callable[[bool], None]]] = {
    SDPBackend.MATH: (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    SDPBackend.FLASH_ATTENTION: (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    SDPBackend.EFFICIENT_ATTENTION: (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    SDPBackend.CUDNN_ATTENTION: (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
}


def short_name(backend: SDPBackend | int) -> str:
    """``math``, ``flash``, ``efficient``, ``cudnn``, ``overrideable``."""
    return SDPBackend(backend).name.removesuffix("_ATTENTION").lower()


class Only:
    """Context in which one backend is on and the others are off, as they were again after it.

    ``torch.nn.attention.sdpa_kernel`` does the same in 12 us a call, which a sweep over short
    sequences would count as the kernel's own time; this takes about 1 us.
    """

    def __init__(self, backend: SDPBackend) -> None:
        self._inside = [(enable, b is backend) for b, (_, enable) in _SWITCHES.items()]
        self._outside: list[bool] = []

    def __enter__(self) -> None:
        self._outside = [enabled() for enabled, _ in _SWITCHES.values()]
        for enable, on in self._inside:
            enable(on)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for (enable, _), on in zip(self._inside, self._outside, strict=True):
            enable(on)
