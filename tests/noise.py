"""Noise of known kinds, each with true median 0 unless it moves on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]


def autoregressive(r: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Array:
        shocks = rng.standard_normal(n + 50)
        values = np.zeros(n + 50)
        for i in range(1, n + 50):
            values[i] = r * values[i - 1] + math.sqrt(1 - r * r) * shocks[i]
        return 0.01 * values[50:]

    return draw


def normal(rng: np.random.Generator, n: int) -> Array:
    return 0.01 * rng.standard_normal(n)


def lognormal(rng: np.random.Generator, n: int) -> Array:
    return np.asarray(0.01 * (np.exp(rng.standard_normal(n)) - 1))


def spikes(rng: np.random.Generator, n: int) -> Array:
    hit = rng.random(n) < 0.06
    return np.asarray(normal(rng, n) + hit * rng.choice([-0.3, 0.3], n))


def bimodal(rng: np.random.Generator, n: int) -> Array:
    return np.asarray(0.3 * normal(rng, n) + rng.choice([-0.015, 0.0, 0.015], n))


def drift(rng: np.random.Generator, n: int) -> Array:
    return normal(rng, n) + np.linspace(-0.04, 0.04, n)


def step(rng: np.random.Generator, n: int) -> Array:
    return normal(rng, n) + np.where(np.arange(n) < n * rng.uniform(0.3, 0.7), -0.03, 0.03)


def saw_tooth(rng: np.random.Generator, n: int) -> Array:
    phase = (np.arange(n) + rng.integers(0, 10)) % 10
    return normal(rng, n) + 0.08 * (phase / 10 - 0.45)


INDEPENDENT: dict[str, Draw] = {
    "normal": normal,
    "lognormal": lognormal,
    "spikes": spikes,
    "bimodal": bimodal,
}
MILDLY_DEPENDENT: dict[str, Draw] = {"ar 0.3": autoregressive(0.3), "ar 0.5": autoregressive(0.5)}
BROKEN: dict[str, Draw] = {
    "ar 0.8": autoregressive(0.8),
    "drift": drift,
    "step": step,
    "saw-tooth": saw_tooth,
}
