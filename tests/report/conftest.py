from __future__ import annotations

from pathlib import Path

import pytest

from harness.report.content import Content, content_of
from tests.report.runs import rich_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a bit of everything."""
    return rich_run(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def content(run: Path) -> Content:
    return content_of(run)
