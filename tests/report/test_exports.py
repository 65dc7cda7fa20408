"""Files for other tools: pytest-benchmark, a job's summary, figures for slides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness import report
from harness.report.content import Content


def written(run: Path, folder: Path, kind: str) -> Path:
    (path,) = report.write_reports(run, [kind], folder)
    return path


def test_pytest_benchmark_compares_the_run(run: Path, tmp_path: Path) -> None:
    path = written(run, tmp_path, "pytest-benchmark")
    command = ["-m", "pytest_benchmark", "compare", str(path), "--group-by=param:seq_len"]
    done = subprocess.run(
        [sys.executable, *command, "--columns=min,median,rounds"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert "benchmark 'seq_len=128': 16 tests" in done.stdout
    assert "sdpa_flash[b1-h768x8-s128-float32-cpu2]" in done.stdout


def test_its_figures_are_those_of_the_rounds(run: Path, content: Content, tmp_path: Path) -> None:
    document = json.loads(written(run, tmp_path, "pytest-benchmark").read_text())
    assert len(document["benchmarks"]) == 80
    found = next(b for b in document["benchmarks"] if b["name"].startswith("naive["))
    rows = content.rows[
        (content.rows["implementation"] == "naive") & (content.rows["case_id"] == found["param"])
    ]
    minima = np.sort([min(calls) for times in rows["times_s"] for calls in times])
    stats = found["stats"]
    assert stats["rounds"] == len(minima) == 60
    assert stats["min"] == pytest.approx(minima[0])
    assert stats["median"] == pytest.approx(np.median(minima))
    assert stats["stddev"] == pytest.approx(np.std(minima, ddof=1))
    assert stats["ops"] == pytest.approx(1 / np.mean(minima))
    assert found["extra_info"]["worst_scaled_u"] == 2.2
    assert found["extra_info"]["peak_alloc_bytes"] > 0
    assert found["extra_info"]["verdict"] == "reference"


def test_the_summary_starts_with_the_answer_and_folds_the_rest(run: Path, tmp_path: Path) -> None:
    lines = written(run, tmp_path, "summary").read_text().splitlines()
    assert lines[2].startswith("**Use naive up to length 256, sdpa")
    assert lines.count("<details><summary>Details</summary>") == lines.count("</details>") == 1


def test_figures_are_drawn_without_a_browser_and_the_same_each_time(
    run: Path, tmp_path: Path
) -> None:
    svg = written(run, tmp_path, "svg").read_text()
    assert svg.startswith("<svg")
    for text in ("hidden 768, heads 8", "length", "sdpa_flash", "10 ms"):
        assert text in svg
    assert written(run, tmp_path / "again", "svg").read_text() == svg
    assert written(run, tmp_path, "png").read_bytes().startswith(b"\x89PNG")
