"""`mha-bench check`: what it runs, how it ends, and that a plug-in can't bring it down."""

import re

import pytest

from tests.command import mha_bench, mha_bench_here

_ONE = ("--dtype", "float32", "--only", "sizes_that_all_differ")


def test_a_right_implementation_passes(tmp_path):
    ended = mha_bench("check", "tests.fakes:Right", *_ONE, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    first, summary = ended.stdout.splitlines()
    assert first.split()[:3] == ["ok", "float32", "check_sizes_that_all_differ:"]
    assert summary == "Right: 1 ok"


def test_an_implementation_of_the_registry_is_named_and_takes_options(tmp_path):
    words = ("chunked", "query_chunk=2", "key_chunk=3", *_ONE)
    ended = mha_bench("check", *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "chunked: 1 ok"


def test_a_wrong_one_fails_with_the_case_and_the_worst_element(tmp_path):
    ended = mha_bench("check", "tests.fakes:ReturnsZeros", *_ONE, cwd=tmp_path)
    assert ended.returncode == 1
    assert "FAIL" in ended.stdout
    assert "b2-h24x3-s5" in ended.stdout
    assert "got 0, expected" in ended.stdout


_STRANGERS_KERNEL = """
import torch
from harness.interface import AttentionImplementation, DType


class Mine(AttentionImplementation):
    dtypes = frozenset({DType.FLOAT32})

    def make_attend(self, case, masks):
        scale, tile = case.config.scale, 64

        def attend(q, k, v):
            stops = [min(start + tile, k.shape[2]) for start in range(0, k.shape[2], tile)] or [0]
            # DEFECT
            tiles = [slice(i * tile, stop) for i, stop in enumerate(stops)]
            scores = torch.cat([q @ k[:, :, keys].mT for keys in tiles], dim=-1) * scale
            values = torch.cat([v[:, :, keys] for keys in tiles], dim=2)
            return torch.softmax(scores, dim=-1) @ values

        return attend
"""
_LAST_KEY_OF_LAST_TILE_DROPPED = "stops[-1] -= len(stops) > 1"


def test_a_strangers_kernel_passes_without_its_defect_and_is_rejected_with_it(tmp_path):
    """The message names the property, the shape and the worst element."""
    words = ("check", "my_kernel:Mine", "--dtype", "float32", "--only", "lengths,head_dims")
    (tmp_path / "my_kernel.py").write_text(_STRANGERS_KERNEL)
    right = mha_bench_here(*words, cwd=tmp_path)
    assert right.returncode == 0, right.stdout
    assert right.stdout.splitlines()[-1] == "Mine: 2 ok"
    wrong_text = _STRANGERS_KERNEL.replace("# DEFECT", _LAST_KEY_OF_LAST_TILE_DROPPED)
    (tmp_path / "my_kernel.py").write_text(wrong_text)
    wrong = mha_bench_here(*words, cwd=tmp_path)
    assert wrong.returncode == 1
    (line,) = (line for line in wrong.stdout.splitlines() if line.startswith("FAIL"))
    assert line.startswith("FAIL  float32  check_lengths: b1-h16x2-s1-k65-float32")
    assert "times what rounding allows at batch 0, head" in line
    assert re.search(r"channel \d+: got \S+, expected \S+", line)
    assert "broken promise: Every length is right: around tiles" in line
    assert wrong.stdout.splitlines()[-2] == "failed: check_lengths (float32)"


def test_one_that_dies_is_a_failure_with_its_signal(tmp_path):
    ended = mha_bench("check", "tests.fakes:Segfaults", *_ONE, cwd=tmp_path)
    assert ended.returncode == 1
    assert "SIGSEGV" in ended.stdout


def test_a_target_without_such_a_class_is_an_error_that_lists_what_there_is(tmp_path):
    ended = mha_bench("check", "tests.fakes:Rigth", *_ONE, cwd=tmp_path)
    assert ended.returncode == 2
    assert "did you mean Right" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["naiv"], "did you mean naive"),
        (["no_kernel:Mine"], "there is no 'no_kernel'"),
        (["naive", "--dtype", "float8"], "choices: float32"),
        (["naive", "--device", "tpu"], "choices: cpu, cuda"),
        (["chunked", "query_chunk"], "OPTION=VALUE"),
    ],
)
def test_wrong_input_is_one_line(words, part, tmp_path):
    ended = mha_bench_here("check", *words, cwd=tmp_path)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert part in line


def test_an_unknown_check_is_refused_with_the_names_of_all(tmp_path):
    ended = mha_bench("check", "naive", "--only", "speed", cwd=tmp_path)
    assert ended.returncode == 2
    assert "check_speed" in ended.stderr
    assert "check_masks" in ended.stderr


@pytest.mark.nightly
def test_the_battery_is_shown_to_catch_every_planted_defect(tmp_path):
    ended = mha_bench("check", "--mutants", cwd=tmp_path, timeout_s=1800)
    assert ended.returncode == 0, ended.stdout
    assert "OnlyMultiplesOfEight: caught by check_head_dims" in ended.stdout
    assert "SoundMaterialised: passes every check" in ended.stdout
    assert "DropsLastKey on outlier_channel inputs: bound x" in ended.stdout
