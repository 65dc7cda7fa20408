"""What the commands say and how they end; nothing here measures anything."""

import os

import pytest

from tests.command import mha_bench, mha_bench_here

_TINY = ("hidden_size=64", "num_heads=2", "seq_len=8", "implementation=naive")


def one_line_of(failed):
    """The only line of a command that ended because of wrong input."""
    assert failed.returncode == 2
    assert failed.stdout == ""
    (line,) = failed.stderr.splitlines()
    assert line.startswith("mha-bench: ")
    return line


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["hiden_size=3"], ["hiden_size", "did you mean hidden_size", "'hiden_size'", "choices:"]),
        (["measure.pases=2"], ["measure.pases", "did you mean passes", "choices:"]),
        (["measure.passes=many"], ["measure.passes", "'many'", "Integer"]),
        (["implementation=sdpaa"], ["implementation", "did you mean sdpa", "choices:"]),
        (["implementations.nave.target=m:M"], ["implementations.nave", "did you mean naive"]),
        (["model=lama2_7b"], ["model", "did you mean llama2_7b", "choices:"]),
        (["sweep=smok"], ["sweep", "did you mean smoke", "choices:"]),
        (["measure=fast"], ["measure", "'fast'", "choices: publish, quick, smoke"]),
        (["device=tpu"], ["device", "'tpu'", "choices: cpu, cuda"]),
        (["dtype=float8"], ["dtype", "'float8'", "choices: float32"]),
        (["mask=causl"], ["mask", "'causl'", "choices: none"]),
        (
            ["hidden_size=768", "num_heads=10"],
            ["num_heads", "divisor of hidden_size=768", "got 10"],
        ),
        (["hidden_size=512", "num_heads=0"], ["num_heads", "at least 1", "got 0"]),
        (["seq_len=-1"], ["seq_len", "at least 0", "got -1"]),
        (["seq_len=1e3"], ["seq_len", "write 1000", "got 1000.0"]),
        (["seq_len=010,64"], ["seq_len", "write 10", "got '010'"]),
        (["num_kv_heads=None"], ["num_kv_heads", "null", "got 'None'"]),
        (["results_dir=/proc/nowhere"], ["results_dir", "/proc/nowhere"]),
        (["run=nowhere"], ["nowhere", "config.yaml"]),
        (["--resume", "nowhere"], ["nowhere", "config.yaml"]),
        (["--config-dir", "nowhere"], ["nowhere", "not found"]),
        (["+implementations.mine.target=no_kernel:Mine"], ["no_kernel", "PYTHONPATH"]),
        (["+implementations.mine.target=no_kernel"], ["module:Class", "'no_kernel'"]),
        (["seq_len"], ["KEY=VALUE", "'seq_len'"]),
        (["a=b,="], ["KEY=VALUE", "'a=b,='"]),
        (["--folder=x"], ["--folder=x", "--help"]),
        (["-m", "--cfg", "job"], ["--multirun --cfg"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_one_line_with_what_was_expected_and_no_traceback(words, parts, tmp_path):
    line = one_line_of(mha_bench_here("sweep", *words, cwd=tmp_path))
    for part in parts:
        assert part in line
    assert list(tmp_path.iterdir()) == []


def test_a_results_folder_that_is_a_file_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "results").write_text("")
    assert "results" in one_line_of(mha_bench_here("sweep", *_TINY, cwd=tmp_path))


def test_an_unknown_command_is_refused(tmp_path):
    ended = mha_bench_here("swep", cwd=tmp_path)
    assert ended.returncode == 2
    assert "swep" in ended.stderr


def test_the_help_of_the_command_names_every_command(tmp_path):
    shown = mha_bench("--help", cwd=tmp_path)
    assert shown.returncode == 0
    for command in ("sweep", "compare", "report", "decide", "list", "check", "selfcheck"):
        assert command in shown.stdout


def test_the_version_is_shown(tmp_path):
    shown = mha_bench("--version", cwd=tmp_path)
    assert shown.returncode == 0
    assert shown.stdout.startswith("mha-bench ")


def test_the_help_of_sweep_lists_groups_keys_and_own_options(tmp_path):
    shown = mha_bench("sweep", "--help", cwd=tmp_path).stdout
    for part in ("implementation: chunked", "bert_base", "hidden_size:", "--dry-run", "--resume"):
        assert part in shown


def test_the_configuration_can_be_shown_instead_of_run(tmp_path):
    shown = mha_bench_here("sweep", "--cfg", "job", "seq_len=64,128", "sweep=smoke", cwd=tmp_path)
    assert "seq_len:\n- 64\n- 128\n" in shown.stdout
    assert "passes: 1\n" in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_flags_may_stand_before_and_after_overrides(tmp_path):
    before = mha_bench_here("sweep", "--cfg", "job", "seq_len=64", cwd=tmp_path)
    after = mha_bench_here("sweep", "seq_len=64", "--cfg", "job", cwd=tmp_path)
    assert before.stdout == after.stdout != ""


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path):
    # https://github.com/hydra-ecosystem/hydra/issues/1324: 200 trivial configurations
    axes = ("hidden_size=64", "num_heads=2", "seq_len=range(1,201)", "implementation=naive")
    shown = mha_bench("sweep", "--dry-run", *axes, "measure=smoke", cwd=tmp_path)
    assert shown.returncode == 0
    assert shown.stdout.startswith("200 cases x 1 implementation x 1 pass = 200 rows, about ")
    assert "... and 180 more" in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_is_left_out_and_why(tmp_path):
    shown = mha_bench_here("sweep", "--dry-run", "sweep=design_grid", cwd=tmp_path).stdout
    assert "points are left out" in shown
    assert "min_head_dim=16, got 6" in shown


def test_a_dry_run_of_many_jobs_shows_every_plan_and_writes_nothing(tmp_path):
    words = ("-m", "hidden_size=64", "num_heads=2", "seq_len=8,16", "mask=none,causal")
    shown = mha_bench("sweep", "--dry-run", *words, cwd=tmp_path)
    assert shown.returncode == 0
    assert shown.stdout.count("1 case x") == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mha-bench sw", {"sweep"}),
        ("mha-bench sweep sweep=s", {"sweep=smoke", "sweep=short_query"}),
        ("mha-bench sweep implementation=nai", {"implementation=naive"}),
        ("mha-bench sweep hidden", {"hidden_size="}),
        ("mha-bench sweep sweep=smoke measure.pas", {"measure.passes="}),
    ],
)
def test_a_shell_is_told_how_a_line_may_go_on(line, expected, tmp_path):
    asked = mha_bench("-sc", "query=bash", cwd=tmp_path, environment={"COMP_LINE": line})
    assert asked.returncode == 0
    assert set(asked.stdout.split()) >= expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_installs_in_every_shell_that_hydra_knows(shell, tmp_path):
    shown = mha_bench("-sc", f"install={shell}", cwd=tmp_path)
    assert shown.returncode == 0
    assert "query=" in shown.stdout or "compdef" in shown.stdout


def test_hydra_writes_no_folders_and_leaves_the_working_folder_alone(tmp_path):
    mha_bench("sweep", "--dry-run", *_TINY, cwd=tmp_path)
    assert os.listdir(tmp_path) == []
