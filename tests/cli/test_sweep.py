"""Whole sweeps from the command line: rows, folders, exit codes, and going on after a stop."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness.rows import Status
from harness.store import load, read_rows
from tests.command import TINY, mha_bench

_CHECKOUT = Path(__file__).resolve().parents[2]


def fake(name, **options):
    """Words that add a class of tests/fakes.py under its own name."""
    yield f"+implementations.{name}.target=tests.fakes:{name}"
    for option, value in options.items():
        yield f"implementations.{name}.options.{option}={value}"


def statuses(run):
    return {(row.implementation, row.case.config.seq_len): row.status for row in read_rows(run)}


def test_a_sweep_ends_with_its_table_its_report_and_the_next_commands(tmp_path):
    swept = mha_bench("sweep", *TINY, "seq_len=8,16", "implementation=naive,sdpa", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    (run,) = (tmp_path / "results").iterdir()
    assert statuses(run) == {(name, n): Status.OK for name in ("naive", "sdpa") for n in (8, 16)}
    assert "Time per call" in swept.stdout
    report = Path("results") / run.name / "report.html"
    assert f"Report: {report}" in swept.stdout
    assert (tmp_path / report).read_text()
    (compare,) = [line for line in swept.stdout.splitlines() if "mha-bench compare " in line]
    assert mha_bench(*compare.split()[1:], cwd=tmp_path).returncode == 0
    assert f"mha-bench sweep --resume results/{run.name} measure=standard" in swept.stdout
    assert "[1/2]" in swept.stderr
    assert os.listdir(tmp_path) == ["results"]


def test_one_that_crashes_and_one_that_raises_leave_the_rest_of_the_sweep_alone(tmp_path):
    # https://github.com/hydra-ecosystem/hydra/issues/2284,
    # https://github.com/meta-pytorch/BackendBench/issues/45
    words = (*TINY, "seq_len=8,16", "implementation=naive", *fake("Raises"), *fake("Segfaults"))
    swept = mha_bench("sweep", *words, "name=faults", cwd=tmp_path)
    assert swept.returncode == 1
    assert "Raises error" in swept.stderr
    assert "Traceback" not in swept.stderr
    found = statuses(tmp_path / "results" / "faults")
    assert {found["naive", n] for n in (8, 16)} == {Status.OK}
    assert {found["Raises", n] for n in (8, 16)} == {Status.ERROR}
    assert {found["Segfaults", n] for n in (8, 16)} == {Status.CRASHED}


def test_what_makes_the_exit_code_1_is_a_choice(tmp_path):
    words = (*TINY, "seq_len=8", "implementation=naive", *fake("Raises"))
    assert mha_bench("sweep", *words, "fail_on=[]", cwd=tmp_path).returncode == 0


def test_a_missing_card_makes_unsupported_rows_and_no_error(tmp_path):
    words = (*TINY, "seq_len=8", "implementation=naive", "device=cpu,cuda", "name=both")
    swept = mha_bench("sweep", *words, cwd=tmp_path, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert swept.returncode == 0, swept.stderr
    rows = {row.case.device: row for row in read_rows(tmp_path / "results" / "both")}
    assert rows["cpu"].status is Status.OK
    assert rows["cuda"].status is Status.UNSUPPORTED
    assert any("no CUDA device" in reason for reason in rows["cuda"].reasons)
    assert "device=cuda" in swept.stdout
    assert "unsupported" in swept.stdout


def test_two_sweeps_started_in_the_same_second_keep_their_rows_apart(tmp_path):
    # https://github.com/hydra-ecosystem/hydra/issues/1817
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "harness", "sweep", *TINY, lengths, "implementation=naive"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(_CHECKOUT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for lengths in ("seq_len=8,16", "seq_len=8,16,24")
    ]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    counts = sorted(len(read_rows(run)) for run in (tmp_path / "results").iterdir())
    assert counts == [2, 3]


def test_a_stopped_sweep_goes_on_where_it_was(tmp_path):
    # https://github.com/hydra-ecosystem/hydra/issues/3328
    words = (*TINY, "seq_len=range(8,48,8)", "implementation=naive", "name=stopped")
    run = tmp_path / "results" / "stopped"
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "sweep", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # where the tests themselves run in the background, a shell has it ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _wait_for_rows(run, 2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "mha-bench sweep --resume results/stopped" in said
    assert "Traceback" not in said
    before = {row.pair: row.started_at for row in read_rows(run)}
    assert 2 <= len(before) < 5

    resumed = mha_bench("sweep", "--resume", "results/stopped", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    after = {row.pair: row.started_at for row in read_rows(run)}
    assert len(after) == 5
    assert {pair: after[pair] for pair in before} == before
    assert len(load(run)) == sum(_lines(run)) == 5


def _wait_for_rows(run, count):
    deadline = time.monotonic() + 60
    while sum(_lines(run)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sum(_lines(run)) >= count


def _lines(run):
    return [len(shard.read_bytes().splitlines()) for shard in run.glob("rows-*.jsonl")]


def test_a_resumed_sweep_takes_further_words_on_top(tmp_path):
    words = (*TINY, "seq_len=8", "implementation=naive", "name=grown")
    assert mha_bench("sweep", *words, cwd=tmp_path).returncode == 0
    more = mha_bench("sweep", "--resume", "results/grown", "seq_len=8,16", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert statuses(tmp_path / "results" / "grown") == {
        ("naive", 8): Status.OK,
        ("naive", 16): Status.OK,
    }


def test_many_jobs_write_into_one_run(tmp_path):
    words = ("-m", *TINY, "seq_len=8,16", "implementation=naive,sdpa", "name=jobs")
    swept = mha_bench("sweep", *words, cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    run = tmp_path / "results" / "jobs"
    assert len(statuses(run)) == 4
    assert len(list(run.glob("rows-*.jsonl"))) == 2
    processes = {row.case.config.seq_len: row.process for row in read_rows(run)}
    assert {row.process for row in read_rows(run)} == set(processes.values())
    assert "Report: results/jobs/report.html" in swept.stdout
    assert os.listdir(tmp_path) == ["results"]


def test_a_failing_job_lets_the_others_run_and_its_error_is_the_last_line(tmp_path):
    words = ("-m", *TINY, "seq_len=8,-1", "implementation=naive", "name=jobs")
    swept = mha_bench("sweep", *words, cwd=tmp_path)
    assert swept.returncode == 2
    assert swept.stderr.splitlines()[-1].startswith("mha-bench: seq_len: expected")
    assert statuses(tmp_path / "results" / "jobs") == {("naive", 8): Status.OK}


def test_a_run_knows_its_command_its_configuration_its_machine_and_how_to_repeat_a_row(tmp_path):
    words = (*TINY, "seq_len=8", "mask=causal", "implementation=naive", "name=first")
    assert mha_bench("sweep", *words, cwd=tmp_path).returncode == 0
    run = tmp_path / "results" / "first"
    config = (run / "config.yaml").read_text()
    assert config.startswith("# mha-bench sweep hidden_size=16 ")
    assert "seq_len: 8\n" in config
    assert json.loads((run / "environment.json").read_text())["key"]

    (row,) = read_rows(run)
    program, *repeat = row.repro.split()
    assert program == "mha-bench"
    assert mha_bench(*repeat, "name=second", cwd=tmp_path).returncode == 0
    (again,) = read_rows(tmp_path / "results" / "second")
    assert again.pair == row.pair
