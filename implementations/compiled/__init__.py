"""Attention by torch.compile: naive attention, and flex_attention with its block masks.

Both compile with ``fullgraph=True``: a break of the graph is an error, not a silent return to eager
code. Should torch run eager code all the same, the kernel's name and a note say so. Compilation
happens in the first call, whose time is a column of its own.
"""

from implementations.compiled.flex import Flex
from implementations.compiled.naive import CompiledNaive

__all__ = ["CompiledNaive", "Flex"]
