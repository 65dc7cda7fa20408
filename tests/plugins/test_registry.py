"""From a target to an implementation, and what a user reads when that fails."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from harness.errors import PluginError
from harness.interface import AttentionImplementation, Implementation
from harness.plugins import registry
from harness.plugins.registry import installed_plugins, load_implementation
from harness.settings import ImplementationSpec
from tests.implementations.exact import case_of, exact_attention, random_inputs

PLUGIN = """
import torch
from harness.interface import AttentionImplementation

NUMBER = 7
_private = 1

def spin(x):
    return x

def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v

def two_arguments(q, k):
    return q


def attention_with_block(q, k, v, scale, block=64):
    assert block == 32
    return torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v

class Mine(AttentionImplementation):
    def __init__(self, block=64):
        self.block = block

    def make_attend(self, case, masks):
        return attention

def make_mine(block=64):
    return Mine(block)

mine = Mine(8)

class Abstract(AttentionImplementation):
    pass

class Incomplete:
    def prepare(self, case, inputs):
        return lambda: inputs.q

class WrongSignature(Mine):
    def prepare(self, case):
        return None

class WrongMakeAttend(Mine):
    def make_attend(self, case):
        return attention

class Raises(Mine):
    def __init__(self):
        raise RuntimeError("no licence file")

class Exits(Mine):
    def __init__(self):
        raise SystemExit(3)

class Frozen(Mine):
    name = property(lambda self: "frozen")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a user who has written ``my_plugin.py``."""
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    (tmp_path / "needs_numba.py").write_text("import no_such_numba\n")
    (tmp_path / "broken.py").write_text("raise OSError('libcuda.so.1: not found')\n")
    (tmp_path / "exits.py").write_text("import sys; sys.exit('bye')\n")
    (tmp_path / "not_python.py").write_text("def f(:\n")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("my_plugin", "needs_numba", "broken", "exits", "not_python", "my_package"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def load(target: str, **options: object) -> Implementation:
    return load_implementation(ImplementationSpec("mine", target, options))


@pytest.mark.parametrize(
    "target",
    [
        "my_plugin:Mine",
        "my_plugin:make_mine",
        "my_plugin:mine",
        "my_plugin:attention",
        "my_plugin.py:Mine",
    ],
)
@pytest.mark.usefixtures("folder")
def test_every_form_of_a_target_becomes_an_implementation_of_the_given_name(target: str) -> None:
    implementation = load(target)
    case = case_of()
    inputs = random_inputs(case)
    assert implementation.name == "mine"
    assert implementation.unsupported_reasons(case) == ()
    output = implementation.prepare(case, inputs)()
    assert float((output - exact_attention(case.config, inputs)).abs().max()) < 1e-6


@pytest.mark.parametrize("target", ["my_plugin:Mine", "my_plugin:make_mine"])
@pytest.mark.usefixtures("folder")
def test_options_reach_the_class_or_the_function_that_makes_it(target: str) -> None:
    assert load(target, block=128).block == 128  # type: ignore[attr-defined]


@pytest.mark.usefixtures("folder")
def test_options_of_a_plain_function_reach_its_calls() -> None:
    case = case_of()
    output = load("my_plugin:attention_with_block", block=32).prepare(case, random_inputs(case))()
    assert output.shape == (3, 4, 7, 8)


def test_an_absolute_path_of_a_file_works_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert load(f"{folder}/my_plugin.py:Mine").name == "mine"


@pytest.mark.usefixtures("folder")
def test_a_shared_object_is_not_renamed() -> None:
    load("my_plugin:mine")
    assert sys.modules["my_plugin"].mine.name == ""


FAILURES = {
    "no colon": ("my_plugin", {}, "expected target=module:Class, got 'my_plugin'"),
    "no attribute": ("my_plugin:", {}, "expected target=module:Class, got 'my_plugin:'"),
    "no module": ("my_plugn:Mine", {}, "there is no module 'my_plugn'"),
    "no submodule": ("my_package.kernels:Mine", {}, "package my_package has no module 'kernels'"),
    "no file": ("kernels/mine.py:Mine", {}, "there is no file kernels/mine.py"),
    "a lacking dependency": (
        "needs_numba:Mine",
        {},
        "importing needs_numba raised ModuleNotFoundError: No module named 'no_such_numba'",
    ),
    "a failing import": (
        "broken:Mine",
        {},
        "importing broken raised OSError: libcuda.so.1: not found",
    ),
    "an exit at import": ("exits:Mine", {}, "importing exits raised SystemExit: bye"),
    "a syntax error": ("not_python:Mine", {}, "importing not_python raised SyntaxError"),
    "a misspelt name": ("my_plugin:Mne", {}, "did you mean Mine?"),
    "no such name": (
        "my_plugin:zzz",
        {},
        "it has spin, attention, two_arguments, attention_with_block, Mine",
    ),
    "an empty module": ("my_package:Mine", {}, "it defines no class and no function"),
    "a number": ("my_plugin:NUMBER", {}, "expected a class, a function or an implementation"),
    "an unknown option": (
        "my_plugin:Mine",
        {"blok": 64},
        "got an unexpected keyword argument 'blok': it takes Mine(block=64), got blok=64",
    ),
    "an option of an object": (
        "my_plugin:mine",
        {"block": 64},
        "it is an object already and takes no options, got block=64",
    ),
    "a function of other arguments": (
        "my_plugin:two_arguments",
        {},
        "a function that computes attention takes q, k and v first, without defaults",
    ),
    "an unknown option of a function": ("my_plugin:attention", {"block": 64}, "'block'"),
    "a class without its method": (
        "my_plugin:Abstract",
        {},
        "class Abstract is abstract: it lacks make_attend",
    ),
    "a class without the interface": (
        "my_plugin:Incomplete",
        {},
        "it lacks unsupported_reasons, version, kernel, notes, contract, expected_alloc_bytes",
    ),
    "a method that takes too little": (
        "my_plugin:WrongSignature",
        {},
        "prepare(case) can't be called as prepare(case, inputs)",
    ),
    "an inner method that takes too little": (
        "my_plugin:WrongMakeAttend",
        {},
        "make_attend(case) can't be called as make_attend(case, masks)",
    ),
    "a failing constructor": (
        "my_plugin:Raises",
        {},
        "making it with no options raised RuntimeError: no licence file",
    ),
    "an exiting constructor": ("my_plugin:Exits", {}, "raised SystemExit: 3"),
    "a function that makes something else": (
        "my_plugin:spin",
        {"x": 3},
        "int is no implementation",
    ),
    "a fixed name": ("my_plugin:Frozen", {}, "its name can't be set to 'mine'"),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_names_the_target_and_what_is_wrong(failure: str) -> None:
    target, options, expected = FAILURES[failure]
    with pytest.raises(PluginError) as raised:
        load(target, **options)
    message = str(raised.value)
    assert message.startswith(f"implementation 'mine' ({target}): ")
    assert expected in message


@pytest.mark.usefixtures("folder")
def test_the_cause_of_a_failing_import_is_kept() -> None:
    with pytest.raises(PluginError) as raised:
        load("broken:Mine")
    causes = []
    cause = raised.value.__cause__
    while cause is not None:
        causes.append(type(cause))
        cause = cause.__cause__
    assert OSError in causes


def test_installed_entry_points_are_listed_by_name_and_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [
        EntryPoint("zebra", "no_such_module:Zebra", registry.ENTRY_POINT_GROUP),
        EntryPoint("ant", "no_such_module:Ant", registry.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert installed_plugins() == (
        ImplementationSpec("ant", "no_such_module:Ant"),
        ImplementationSpec("zebra", "no_such_module:Zebra"),
    )


def test_listing_plugins_needs_no_torch() -> None:
    code = (
        "import sys; from harness.plugins.registry import installed_plugins; installed_plugins(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_shortest_plugin_of_the_interface_s_docstring_works(folder: Path) -> None:
    import harness.interface

    assert harness.interface.__doc__ is not None
    example = harness.interface.__doc__.split("::\n")[1].split("``make_attend`` runs")[0]
    preamble = (
        "import torch\nfrom harness.interface import AttentionImplementation\n"
        "def my_kernel(q, k, v, scale):\n"
        "    return torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v\n"
    )
    source = preamble + textwrap.dedent(example)
    assert len(source.splitlines()) < 15
    (folder / "shortest.py").write_text(source)
    case = case_of()
    inputs = random_inputs(case)
    output = load("shortest:Mine").prepare(case, inputs)()
    torch.testing.assert_close(
        output.double(), exact_attention(case.config, inputs), atol=1e-6, rtol=0
    )


def test_every_method_of_the_interface_is_checked_at_loading() -> None:
    methods = {name for name, value in vars(Implementation).items() if inspect.isfunction(value)}
    assert set(registry._METHODS) == {name for name in methods if not name.startswith("_")}


def test_every_implementation_that_is_shipped_loads() -> None:
    folder = Path(registry.__file__).parents[2] / "conf" / "implementation"
    if not folder.is_dir():
        pytest.skip("conf/ lies elsewhere in an installed package")
    from omegaconf import OmegaConf

    files = sorted(folder.glob("*.yaml"))
    assert files
    for file in files:
        chosen = OmegaConf.load(file)
        spec = ImplementationSpec(file.stem, chosen.target, dict(chosen.options))
        implementation = load_implementation(spec)
        assert implementation.name == file.stem
        assert isinstance(implementation.unsupported_reasons(case_of()), tuple)
        assert isinstance(implementation, AttentionImplementation)
        assert file.read_text().startswith(f"# @package implementations.{file.stem}\n")
