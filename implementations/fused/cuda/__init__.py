"""Fused attention for CUDA, in Triton; ``Fused`` takes it for cases on that device.

Modules, in the order in which a call goes through them:

- ``implementation``: what can be done, and the function that is timed
- ``tuning``: the named tile sizes, and which of them is fastest here
- ``autograd``: forward and backward as one function
- ``plan``: everything that stays the same from call to call, and the launches
- ``arguments``: what a launch hands over, in groups
- ``kernels/``: the device code. It alone imports triton, and is imported only inside functions.
"""

from implementations.fused.cuda.implementation import FusedOnCuda

__all__ = ["FusedOnCuda"]
