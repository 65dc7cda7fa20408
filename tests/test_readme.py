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


_SNIPPETS = re.findall(r"```python\n(.*?)```", _README, flags=re.DOTALL)


def test_the_table_of_the_readme_can_be_loaded(monkeypatch):
    (loading,) = (text for text in _SNIPPETS if "harness.load" in text)
    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    names: dict[str, object] = {}
    exec(loading, names)
    assert len(names["rows"])


def test_the_kernel_of_the_readme_passes_the_battery(tmp_path):
    (kernel,) = (text for text in _SNIPPETS if "make_attend" in text)
    assert len(kernel.splitlines()) <= 15
    (tmp_path / "my_kernel.py").write_text(kernel)
    words = ("check", "my_kernel:Mine", "--dtype", "float32")
    shown = mha_bench_here(*words, cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout
    assert re.match(r"Mine: \d+ ok", shown.stdout.splitlines()[-1])
