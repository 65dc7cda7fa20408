"""What a notebook user types: three functions, and the examples that show them."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import harness
from tests.report.runs import rich_run

ROOT = Path(__file__).parents[1]


def test_the_package_exports_what_it_says() -> None:
    assert harness.__all__ == ["compare", "decide", "load"]
    assert all(callable(getattr(harness, name)) for name in harness.__all__)


def test_importing_the_package_imports_neither_pandas_nor_torch() -> None:
    code = "import sys, harness; assert not {'pandas', 'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_rows_comparisons_and_decisions_come_as_tables(tmp_path: Path) -> None:
    rows = harness.load(rich_run(tmp_path))
    comparisons = harness.compare(rows, against="sdpa")
    decision = harness.decide(rows)
    assert isinstance(comparisons, pd.DataFrame)
    assert set(comparisons["against"]) == {"sdpa"}
    assert set(decision.best) == {"sdpa", "sdpa_flash"}


def test_the_example_in_the_documentation_of_runs_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rich_run(tmp_path / "results", "example")
    monkeypatch.chdir(tmp_path)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    text = (ROOT / "results" / "README.md").read_text()
    test = doctest.DocTestParser().get_doctest(text, {}, "results/README.md", None, 0)
    assert len(test.examples) >= 6
    runner = doctest.DocTestRunner(optionflags=flags)
    runner.run(test)
    assert runner.failures == 0
