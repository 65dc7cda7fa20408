"""Fused attention for the CPU: kernels in csrc/, called through a plain C interface."""

from implementations.fused.implementation import Fused

__all__ = ["Fused"]
