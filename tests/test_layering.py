"""What must start at once, or run on a laptop without torch, never imports torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import mha_bench, processor_time_of_children_s
from tests.synthetic import Truth, draw_rows, make_case, store_run

_CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory):
    """A folder to put on PYTHONPATH, where ``import torch`` fails and says by whom."""
    folder = tmp_path_factory.mktemp("no_torch")
    (folder / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    return {"PYTHONPATH": f"{folder}:{_CHECKOUT}"}


@pytest.fixture(scope="module")
def stored_run(tmp_path_factory):
    cases = [make_case(seq_len) for seq_len in (64, 128)]
    seconds = {"naive": 2e-3, "sdpa": 1e-3}
    truth = Truth({name: {case.id: s for case in cases} for name, s in seconds.items()})
    return store_run(tmp_path_factory.mktemp("results"), draw_rows(cases, truth))


def test_the_modules_of_plans_rows_and_reports_import_no_torch():
    modules = (
        "harness, harness.analysis.compare, harness.analysis.between, harness.planning.config,"
        "harness.planning.plan,"
        "harness.report.terminal, harness.report.files, harness.rows, harness.statistics.intervals,"
        "harness.store, harness.columns, harness.sweep, harness.cost, harness.cli,"
        "harness.cli.hydra_app, harness.cli.listing"
    )
    program = f"import sys, {modules}\nprint('torch' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=_CHECKOUT, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "False\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["sweep", "--help"],
        ["sweep", "--dry-run"],
        ["sweep", "--cfg", "job"],
        ["compare", "RUN"],
        ["compare", "RUN", "RUN"],
        ["report", "RUN"],
        ["report", "RUN", "--format", "md,csv,parquet"],
        ["compare", "--help"],
        ["report", "--help"],
    ],
    ids=" ".join,
)
def test_a_command_that_measures_nothing_works_without_torch(
    words, stored_run, without_torch, tmp_path
):
    words = [str(stored_run) if word == "RUN" else word for word in words]
    shown = mha_bench(*words, cwd=tmp_path, environment=without_torch)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout


def test_the_help_is_there_in_half_a_second(tmp_path):
    before_s = processor_time_of_children_s()
    mha_bench("--help", cwd=tmp_path)
    assert processor_time_of_children_s() - before_s < 0.5
