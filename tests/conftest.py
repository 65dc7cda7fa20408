"""What all tests share: which of them run where, and how long a property test may take."""

from __future__ import annotations

import pytest
from hypothesis import settings

# The machine may be busy: a slow example is no failure.
settings.register_profile("mha-bench", deadline=None)
settings.load_profile("mha-bench")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests compute little at a time: on a busy machine a second thread makes them 40 times slower,
    for each small operation waits until both are scheduled.
    """
    import torch

    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also run the slow proofs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--nightly"):
        _skip(items, "nightly", "slow proof; run with --nightly")
    if any("gpu" in item.keywords for item in items) and not _has_cuda():
        _skip(items, "gpu", "needs a CUDA card")


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if marker in item.keywords:
            item.add_marker(pytest.mark.skip(reason=reason))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
