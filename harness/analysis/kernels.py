"""One kernel under several names: comparing those names compares what is wrapped around it.

An implementation that calls somebody else's kernel says so after ``via``: ``sdpa:efficient via
xformers cutlassF-pt`` and ``sdpa:efficient`` are one kernel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pandas as pd

from harness.analysis.cells import is_ok

_VIA = " via "


@dataclass(frozen=True)
class SharedKernel:
    """Implementations that ran the same kernel on the same cases.

    Args:
        num_cases: In how many cases they did.
    """

    kernel: str
    implementations: tuple[str, ...]
    num_cases: int


def shared_kernels(cells: pd.DataFrame) -> tuple[SharedKernel, ...]:
    """Kernels that ran under more than one name; of cells that are ``ok``, most cases first."""
    ran = cells[is_ok(cells) & ~cells["kernel"].isin(["", "none"])]
    together: dict[tuple[str, str], list[str]] = {}
    for case_key, name, kernel in zip(
        ran["case_key"], ran["implementation"], ran["kernel"], strict=True
    ):
        together.setdefault((case_key, kernel.partition(_VIA)[0]), []).append(name)
    cases = Counter(
        (kernel, tuple(sorted(names))) for (_, kernel), names in together.items() if len(names) > 1
    )
    found = [SharedKernel(kernel, names, number) for (kernel, names), number in cases.items()]
    return tuple(sorted(found, key=lambda s: (-s.num_cases, s.kernel, s.implementations)))
