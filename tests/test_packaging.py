"""What is installed works from any folder, and nothing is left behind in the checkout."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.command import TINY

_CHECKOUT = Path(__file__).resolve().parent.parent
_PROJECT = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text())


def test_every_package_folder_is_listed():
    found = {
        ".".join(path.parent.relative_to(_CHECKOUT).parts)
        for root in ("harness", "implementations")
        for path in (_CHECKOUT / root).rglob("__init__.py")
    }
    listed = set(_PROJECT["tool"]["setuptools"]["packages"])
    assert listed == found | {"harness.conf"}


def test_every_package_that_is_asked_for_has_a_tested_version():
    lines = (_CHECKOUT / "constraints.txt").read_text().splitlines()
    tested = {_package(line) for line in lines if "==" in line and not line.startswith("#")}
    project = _PROJECT["project"]
    asked = [project["dependencies"], *project["optional-dependencies"].values()]
    named = {_package(requirement) for requirements in asked for requirement in requirements}
    assert named - {"mha-bench"} <= tested


def _package(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement.lower().replace("_", "-"))[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the checkout, without the compiled kernels."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("harness", "implementations", "conf"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(_CHECKOUT / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(_CHECKOUT / name, copy)
    (copy / "README.md").write_text("# mha-bench\n")
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, check=True)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder into which the wheel is unpacked, as an installer does."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def _mha_bench(installed, cwd, *words):
    program = "from harness.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *words],
        cwd=cwd,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_holds_every_configuration_and_nothing_named_conf(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (_CHECKOUT / "conf").rglob("*.yaml"):
        assert f"harness/conf/{path.relative_to(_CHECKOUT / 'conf')}" in names
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {
        "harness",
        "implementations",
    }


def test_the_installed_command_finds_its_configuration_from_another_folder(installed, tmp_path):
    # https://github.com/hydra-ecosystem/hydra/issues/2125
    shown = _mha_bench(installed, tmp_path, "sweep", "--dry-run", "sweep=smoke", "model=gpt2")
    assert shown.returncode == 0, shown.stderr
    assert "b1-h768x12-s64" in shown.stdout
    searched = _mha_bench(installed, tmp_path, "sweep", "--info", "searchpath").stdout
    assert str(installed / "harness" / "conf") in searched


def test_the_installed_command_writes_beside_its_caller(installed, tmp_path):
    (tmp_path / "my_kernel.py").write_text(_KERNEL)
    words = (
        "sweep",
        *TINY,
        "seq_len=8",
        "implementation=[]",
        "+implementations.mine.target=my_kernel:mine",
    )
    swept = _mha_bench(installed, tmp_path, *words, "results_dir=out/runs", "name=first")
    assert swept.returncode == 0, swept.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".py") == [
        "__pycache__",
        "out",
    ]
    assert list((tmp_path / "out" / "runs" / "first").glob("rows-*.jsonl"))


_KERNEL = """
import torch

def mine(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""
