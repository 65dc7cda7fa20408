"""Fused attention of our own.

For the CPU kernels in csrc/, called through a plain C interface; for CUDA Triton kernels in cuda/.
"""

from implementations.fused.implementation import Fused

__all__ = ["Fused"]
