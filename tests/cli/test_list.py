"""`mha-bench list`: everything that can be chosen, and why the rest can't run here."""

import os
from pathlib import Path

import pytest

from harness.cli.groups import first_comment, group_options
from harness.distributions import DISTRIBUTIONS
from tests.command import mha_bench


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """What is shown on a machine without a card, with two plug-ins of the user's own."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "implementation").mkdir()
    for name, target in (("mine", "tests.fakes:Right"), ("broken", "tests.fakes:Missing")):
        text = f"# @package implementations.{name}\n# The {name} one.\ntarget: {target}\n"
        (folder / "implementation" / f"{name}.yaml").write_text(text)
    environment = {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
    shown = mha_bench("list", "--config-dir", str(folder), cwd=folder, environment=environment)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


@pytest.mark.parametrize("group", ["implementation", "sweep", "measure", "model"])
def test_every_option_of_every_group_is_listed(group, listed):
    first_words = {line.split()[0] for line in listed.splitlines() if line.strip()}
    assert set(group_options(group)) <= first_words


def test_every_input_distribution_is_listed(listed):
    for name, meaning in DISTRIBUTIONS.items():
        assert name in listed
        assert meaning in listed


def test_one_that_runs_says_where_and_in_which_dtypes(listed):
    (line,) = [line for line in listed.splitlines() if line.startswith("mine ")]
    assert "cpu: every dtype" in line
    assert "The mine one." in line


def test_one_that_needs_a_card_says_so(listed):
    (line,) = [line for line in listed.splitlines() if line.startswith("sdpa_cudnn ")]
    assert "device=cpu (only cuda)" in line


def test_one_that_can_not_be_loaded_says_why(listed):
    (line,) = [line for line in listed.splitlines() if line.startswith("broken ")]
    assert "tests.fakes has no 'Missing'" in line


def test_what_holds_for_all_on_a_device_is_said_once(listed):
    assert listed.count("this machine has no CUDA device") == 1


_WITHOUT = """
import importlib.machinery, importlib.metadata

MISSING = {"xformers", "triton", "transformers", "flash_attn", "flash_attn_interface"}
find_spec, version = importlib.machinery.PathFinder.find_spec, importlib.metadata.version

def find_others(name, path=None, target=None):
    return None if name.partition(".")[0] in MISSING else find_spec(name, path, target)

def version_of_others(name):
    if name in MISSING:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.machinery.PathFinder.find_spec = find_others
importlib.metadata.version = version_of_others
"""


def test_without_any_optional_package_each_is_listed_with_its_install_command(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT)
    folders = (str(tmp_path), str(Path(__file__).parents[2]))
    environment = {"PYTHONPATH": os.pathsep.join(folders), "CUDA_VISIBLE_DEVICES": ""}
    shown = mha_bench("list", cwd=tmp_path, environment={**environment, "COLUMNS": "250"})
    assert shown.returncode == 0, shown.stderr
    lines = {line.split()[0]: line for line in shown.stdout.splitlines() if line.strip()}
    installed_by = {
        "xformers": "pip install 'mha-bench[xformers]'",
        "transformers": "pip install 'mha-bench[transformers]'",
        "flash_attn2": "pip install flash-attn --no-build-isolation",
        "flash_attn3": "git clone https://github.com/Dao-AILab/flash-attention",
        "flash_attn4": "pip install flash-attn-4",
    }
    for family, command in installed_by.items():
        members = [line for name, line in lines.items() if name.startswith(family)]
        assert members
        assert all("is not installed" in line and command in line for line in members)


def test_it_says_how_to_ask_for_more(listed):
    for option in ("--matrix: ", "--why NAME AXIS=VALUE", "--probe NAME"):
        assert sum(line.startswith(option) for line in listed.splitlines()) == 1


@pytest.mark.parametrize("group", ["implementation", "sweep", "measure", "model"])
def test_every_packaged_option_says_what_it_is(group):
    for option in group_options(group):
        assert first_comment(group, option), f"conf/{group}/{option}.yaml"


def test_the_matrix_says_who_claims_what_on_each_device(tmp_path):
    environment = {"COLUMNS": "250", "CUDA_VISIBLE_DEVICES": ""}
    shown = mha_bench("list", "--matrix", cwd=tmp_path, environment=environment)
    assert shown.returncode == 0, shown.stderr
    lines = [line for line in shown.stdout.splitlines() if line.startswith("naive ")]
    assert "float32, bfloat16, float16" in lines[0]
    assert "causal, top_left" in lines[0]
    assert "bias:alibi" in shown.stdout
    assert shown.stdout.count("this machine has no CUDA device") == 1


def test_why_gives_value_and_limit(tmp_path):
    words = ("list", "--why", "fused", "dtype=float64", "seq_len=64")
    shown = mha_bench(*words, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "dtype=float64 (only" in shown.stdout


def test_why_of_what_can_be_done_says_so(tmp_path):
    shown = mha_bench("list", "--why", "naive", "mask=causal", cwd=tmp_path)
    assert "naive says that it can do b1-h256x4-s128" in shown.stdout


@pytest.mark.parametrize("words", [("nobody",), ("naive", "hidden=3"), ("naive", "seq_len=x")])
def test_a_wrong_question_is_one_line(words, tmp_path):
    shown = mha_bench("list", "--why", *words, cwd=tmp_path)
    assert shown.returncode == 2
    assert shown.stderr.startswith("mha-bench: ")
    assert "Traceback" not in shown.stderr


def test_a_probe_holds_claims_against_real_calls(tmp_path):
    shown = mha_bench("list", "--probe", "naive", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout
    assert "claims tried, 0 do not hold" in shown.stdout
