"""`mha-bench list`: everything that can be chosen, and why the rest can't run here."""

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


@pytest.mark.parametrize("group", ["implementation", "sweep", "measure", "model"])
def test_every_packaged_option_says_what_it_is(group):
    for option in group_options(group):
        assert first_comment(group, option), f"conf/{group}/{option}.yaml"
