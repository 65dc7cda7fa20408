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
    """Context in which one backend is on and the others are off.

    After it they are as they were when it was made. ``torch.nn.attention.sdpa_kernel`` does the
    same in 12 us a call, which a sweep over short sequences would count as the kernel's own time;
    this takes 2 us.
    """

    def __init__(self, backend: SDPBackend) -> None:
        before = [(enable, enabled(), b is backend) for b, (enabled, enable) in _SWITCHES.items()]
        changed = [(enable, was, wanted) for enable, was, wanted in before if was is not wanted]
        self._inside = [(enable, wanted) for enable, _, wanted in changed]
        self._outside = [(enable, was) for enable, was, _ in changed]

    def __enter__(self) -> None:
        for enable, on in self._inside:
            enable(on)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for enable, on in self._outside:
            enable(on)
