"""The example under examples/, installed as a distribution of its own, as a stranger's would be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "block_softmax"

ASK = """
import json
from harness.plugins.registry import installed_plugins, load_implementation
from harness.settings import ImplementationSpec
from tests.implementations.exact import case_of, exact_attention, random_inputs

spec = next(s for s in installed_plugins() if s.name == "block_softmax")
errors = {}
for mask in ("none", "causal", "window:3+padding:0.5+keep:random", "bias:random"):
    implementation = load_implementation(ImplementationSpec("mine", spec.target, {"block": 3}))
    case = case_of(mask, num_kv_heads=2)
    reasons = implementation.unsupported_reasons(case)
    inputs = random_inputs(case)
    errors[mask] = reasons[0] if reasons else float(
        (implementation.prepare(case, inputs)() - exact_attention(case.config, inputs)).abs().max()
    )
print(json.dumps({"target": spec.target, "errors": errors}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example, and nothing else."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "-q", *offline]
    done = subprocess.run(
        [*command, "--target", str(folder / "site"), str(folder / "source")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


def run(site: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_entry_point_is_found_and_computes_attention(site: Path) -> None:
    done = run(site, "-c", ASK)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["target"] == "block_softmax:BlockSoftmax"
    refused = answer["errors"].pop("bias:random")
    assert refused.startswith("mask=bias:random (needs bias")
    assert all(error < 1e-6 for error in answer["errors"].values())


def test_a_sweep_measures_it_by_name_with_the_yaml_beside_it(site: Path, tmp_path: Path) -> None:
    done = run(
        site,
        "-m",
        "harness",
        "sweep",
        "--config-dir",
        str(EXAMPLE / "conf"),
        "sweep=smoke",
        "implementation=[naive,block_softmax,block_32]",
        "hidden_size=16",
        "num_heads=2",
        "seq_len=8",
        "measure.budget_s=0.1",
        f"results_dir={tmp_path / 'results'}",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (shard,) = (tmp_path / "results").glob("*/rows-*.jsonl")
    rows = [json.loads(line) for line in shard.read_text().splitlines()]
    final = {row["implementation"]: row["status"] for row in rows}
    assert final == {"naive": "ok", "block_softmax": "ok", "block_32": "ok"}


def test_adding_an_implementation_takes_one_short_file_and_one_yaml() -> None:
    (yaml,) = (EXAMPLE / "conf" / "implementation").glob("*.yaml")
    assert len((EXAMPLE / "block_softmax.py").read_text().splitlines()) < 40
    assert len(yaml.read_text().splitlines()) < 10
