"""The commands of the README are commands that work."""

import re
import shlex
from pathlib import Path

import pytest

from harness.cli.app import command_names
from tests.command import mha_bench_here

_README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
_COMMANDS = [
    shlex.split(line.partition("  #")[0])
    for line in re.findall(r"^ *mha-bench (.+)$", _README, flags=re.MULTILINE)
]


def test_there_are_commands_to_try():
    assert len(_COMMANDS) > 5


@pytest.mark.parametrize("words", _COMMANDS, ids=" ".join)
def test_every_command_exists(words):
    assert words[0] in command_names()


@pytest.mark.parametrize(
    "words", [words for words in _COMMANDS if words[0] == "sweep"], ids=" ".join
)
def test_every_sweep_has_a_plan(words, tmp_path):
    (tmp_path / "my_kernel.py").write_text("")
    shown = mha_bench_here(*words, "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert " rows, about " in shown.stdout
