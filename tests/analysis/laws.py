"""Runs whose times follow known laws in the length, so that crossovers and costs are known too."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.attention import Case
from harness.columns import to_frame
from tests.synthetic import Truth, draw_rows, make_case

LENGTHS = (128, 256, 512, 1024, 2048)
Law = tuple[float, float, float]  # seconds, per length, per length squared


def seconds_of(law: Law, case: Case) -> float:
    n = case.config.seq_len
    return law[0] + law[1] * n + law[2] * n * n


def run_with_laws(
    laws: dict[str, Law],
    seed: int = 0,
    lengths: tuple[int, ...] = LENGTHS,
    noise: float = 0.03,
    passes: int = 2,
    cell_noise: float = 0.0,
    **axes: int,
) -> pd.DataFrame:
    """A run along the length; ``cell_noise`` is what a law misses in a cell, as a share."""
    rng = np.random.default_rng([seed, 7])
    cases = [make_case(n, **axes) for n in lengths]
    seconds = {
        name: {
            case.id: seconds_of(law, case) * float(np.exp(cell_noise * rng.standard_normal()))
            for case in cases
        }
        for name, law in laws.items()
    }
    return to_frame(draw_rows(cases, Truth(seconds, noise=noise, passes=passes), seed))
