"""Rows survive kills, full disks and resumes, and come back as one typed table."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import harness
from harness import store
from harness.attention import Case
from harness.columns import AXES, COLUMNS, SAMPLE_COLUMNS
from harness.errors import StoreError
from harness.rows import Row, Samples, Status, to_json
from tests.synthetic import make_case, make_row, store_run

README = Path(__file__).parents[1] / "results" / "README.md"


def shard_of(run: Path) -> Path:
    (shard,) = run.glob("rows-*.jsonl")
    return shard


def test_what_is_appended_is_read_back_equal(tmp_path: Path) -> None:
    rows = [
        make_row(implementation="naive", samples=Samples(((0.1, 0.2), (0.3, 0.1)), (0, 1), 2)),
        make_row(implementation="sdpa", status=Status.ERROR, reasons=("a", "b"), log="trace\nback"),
    ]
    run = store_run(tmp_path, rows)
    assert store.read_rows(run) == rows


def test_two_runs_made_in_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    runs = {store.create_run(tmp_path) for _ in range(20)}
    assert len(runs) == 20


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    store.create_run(tmp_path, "mine")
    with pytest.raises(StoreError, match="a run named 'mine' is already in"):
        store.create_run(tmp_path, "mine")


def test_a_results_folder_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"results_dir: can't make .*Not a directory"):
        store.create_run(tmp_path / "file" / "results")


def test_a_read_only_results_folder_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=r"results_dir: .*Permission denied"):
        store.create_run(tmp_path / "results")


def test_a_full_disk_takes_the_partial_line_back_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store_run(tmp_path, [])
    whole_write = os.write

    def write_a_part_then_fail(file: int, data: bytes) -> int:
        if len(data) > 10:
            return whole_write(file, data[:10]) if data.startswith(b"{") else _full()
        return _full()

    def _full() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with store.ShardWriter(run) as shard:
        shard.append(make_row(implementation="first"))
        monkeypatch.setattr(os, "write", write_a_part_then_fail)
        with pytest.raises(StoreError, match="No space left on device"):
            shard.append(make_row(implementation="lost"))
        monkeypatch.setattr(os, "write", whole_write)
        shard.append(make_row(implementation="second"))
    assert [row.implementation for row in store.read_rows(run)] == ["first", "second"]


def test_a_torn_last_line_is_dropped_and_the_rest_is_read(tmp_path: Path) -> None:
    run = store_run(tmp_path, [make_row(implementation="naive"), make_row(implementation="sdpa")])
    shard = shard_of(run)
    shard.write_bytes(shard.read_bytes()[:-40])
    assert [row.implementation for row in store.read_rows(run)] == ["naive"]


def test_a_damaged_line_within_a_shard_is_an_error_with_its_number(tmp_path: Path) -> None:
    run = store_run(tmp_path, [make_row(implementation="naive"), make_row(implementation="sdpa")])
    shard = shard_of(run)
    shard.write_bytes(b"{}\n" + shard.read_bytes())
    with pytest.raises(StoreError, match=r"rows-.*jsonl, line 1"):
        store.read_rows(run)


@pytest.mark.parametrize("damage", ['"status":"wonderful"', '"status":1'])
def test_a_value_that_no_row_can_have_is_an_error_with_its_line(
    tmp_path: Path, damage: str
) -> None:
    run = store_run(tmp_path, [make_row()])
    shard = shard_of(run)
    shard.write_text(shard.read_text().replace('"status":"ok"', damage))
    with pytest.raises(StoreError, match="line 1"):
        store.read_rows(run)


def test_all_shards_of_a_run_are_one_table(tmp_path: Path) -> None:
    run = store_run(tmp_path, [make_row(implementation="naive")])
    with store.ShardWriter(run) as shard:
        shard.append(make_row(implementation="sdpa"))
    assert len(list(run.glob("rows-*.jsonl"))) == 2
    assert {row.implementation for row in store.read_rows(run)} == {"naive", "sdpa"}


def test_of_a_pair_written_twice_the_last_one_counts(tmp_path: Path) -> None:
    first = make_row(status=Status.CRASHED, started_at="2025-01-01T00:00:00Z")
    again = make_row(status=Status.TIMEOUT, started_at="2025-01-01T00:00:00Z")
    resumed = make_row(status=Status.OK, started_at="2025-01-02T00:00:00Z")
    run = store_run(tmp_path, [first, again])
    assert store.read_rows(run) == [again]
    shard_of(run).rename(run / "rows-zzz.jsonl")
    with store.ShardWriter(run) as shard:
        shard.append(resumed)
    assert store.read_rows(run) == [resumed]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run at"):
        store.read_rows(tmp_path / "absent")
    with pytest.raises(StoreError, match="is no run"):
        store.read_rows(tmp_path)


def test_a_closed_shard_takes_no_more_rows(tmp_path: Path) -> None:
    run = store_run(tmp_path, [])
    with store.ShardWriter(run) as shard:
        pass
    with pytest.raises(StoreError, match="is closed"):
        shard.append(make_row())


def test_a_writer_killed_while_appending_loses_at_most_the_line_in_hand(tmp_path: Path) -> None:
    run = store_run(tmp_path, [])
    script = (
        "import os, sys\n"
        "from harness.store import ShardWriter\n"
        "from tests.synthetic import make_row\n"
        "shard = ShardWriter(sys.argv[1])\n"
        "shard.append(make_row(implementation='kept'))\n"
        "os.write(shard._file, b'{\"half\": ')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(run)], check=False)
    assert done.returncode == -9
    shards = sorted(run.glob("rows-*.jsonl"))
    assert len(shards) == 2
    assert [row.implementation for row in store.read_rows(run)] == ["kept"]


def test_environment_and_configuration_are_stored_beside_the_rows(tmp_path: Path) -> None:
    run = store.create_run(tmp_path)
    assert store.read_environment(run) == {}
    store.write_environment(run, {"key": "abc", "threads": 2})
    store.write_config(run, "seed: 1\n")
    assert store.read_environment(run) == {"key": "abc", "threads": 2}
    assert (run / "config.yaml").read_text() == "seed: 1\n"
    assert sorted(path.name for path in run.iterdir()) == ["config.yaml", "environment.json"]


def test_points_left_out_of_a_plan_are_stored_once_with_their_reason(tmp_path: Path) -> None:
    run = store.create_run(tmp_path)
    assert store.read_left_out(run) == []
    store.write_left_out(run, [])
    assert list(run.iterdir()) == []
    points = [({"hidden_size": 768, "num_heads": 10}, "768 is no multiple of 10")]
    store.write_left_out(run, points)
    store.write_left_out(run, [*points, ({"seq_len": 10**6}, "needs 4 TiB")])
    assert store.read_left_out(run) == [
        ({"hidden_size": 768, "num_heads": 10}, points[0][1]),
        ({"seq_len": 10**6}, "needs 4 TiB"),
    ]


def types_of(frame: pd.DataFrame) -> dict[str, str]:
    return {str(name): str(kind) for name, kind in frame.dtypes.items()}


def test_types_are_the_same_for_good_rows_failures_only_and_no_rows_at_all(tmp_path: Path) -> None:
    """C77: a run of failures used to turn columns into objects."""
    good = make_row(samples=Samples(((1.0, 2.0),), (0,)), peak_alloc_bytes=3, first_call_s=1.0)
    bad = make_row(implementation="big", status=Status.OUT_OF_MEMORY, reasons=("64 GiB",))
    mixed = harness.load(store_run(tmp_path, [good, bad], "mixed"))
    failures = harness.load(store_run(tmp_path, [bad], "failures"))
    empty = harness.load(store_run(tmp_path, [], "empty"))
    expected = {c.name: "string" if c.kind == "text" else c.kind for c in COLUMNS}
    assert types_of(mixed) == types_of(failures) == types_of(empty) == expected
    assert {c.name for c in COLUMNS if c.kind == "object"} == set(SAMPLE_COLUMNS)
    both = pd.concat([mixed, failures], ignore_index=True)
    assert types_of(both) == expected


def test_rows_without_a_mask_stay_in_groups_and_pivots(tmp_path: Path) -> None:
    """C75: pandas drops missing keys from both."""
    rows = [make_row(make_case(mask=mask)) for mask in ("none", "causal")]
    frame = harness.load(store_run(tmp_path, rows))
    assert frame.groupby("mask").size().to_dict() == {"none": 1, "causal": 1}
    pivot = frame.pivot(index="mask", columns="implementation", values="pass_index")
    assert list(pivot.index) == ["causal", "none"]
    text = [c.name for c in COLUMNS if c.kind == "text"]
    assert not frame[text].isna().any().any()


def test_summaries_are_those_of_the_samples() -> None:
    from harness.columns import to_frame

    calls = ((1.0, 3.0, 2.0), (2.0, 2.5, 6.0), (4.0, 5.0, 5.0))
    row = make_row(samples=Samples(calls, (0, 1, 0)), flop_count=10, min_bytes=4)
    line = to_frame([row]).iloc[0]
    assert line["median_s"] == 2.0
    assert line["burst_median_s"] == 2.5
    assert line["min_s"] == 1.0
    assert line["p95_s"] == 6.0
    assert line["flop_per_s"] == 5.0
    assert line["bytes_per_s"] == 2.0
    assert line["num_rounds"] == 3
    assert line["num_calls"] == 9
    assert line["times_s"] == calls


def test_the_worst_error_never_skips_one_that_is_no_number() -> None:
    from harness.columns import to_frame

    good = make_row(errors={"o": {"max_abs": 1.0}, "dq": {"max_abs": 3.0}})
    nan = make_row(errors={"o": {"max_abs": 1.0}, "dq": {"max_abs": None}})
    layer = make_row(errors={"y": {"max_abs": 2.0, "where": "row 3"}})
    frame = to_frame([good])
    assert (frame["o_max_abs"][0], frame["worst_max_abs"][0]) == (1.0, 3.0)
    assert pd.isna(to_frame([nan])["worst_max_abs"][0])
    assert to_frame([layer])["o_max_abs"][0] == 2.0


def test_a_log_sum_exp_has_columns_of_its_own_and_no_part_in_the_worst() -> None:
    from harness.columns import to_frame

    frame = to_frame([make_row(errors={"o": {"max_abs": 1.0}, "lse": {"max_abs": 3.0}})])
    assert (frame["lse_max_abs"][0], frame["worst_max_abs"][0]) == (3.0, 1.0)
    assert pd.isna(to_frame([make_row(errors={"o": {"max_abs": 1.0}})])["lse_max_abs"][0])


def test_every_axis_of_a_case_is_a_column_with_its_value() -> None:
    from harness.columns import to_frame

    case = make_case(mask="causal+window:8", mode="backward", dtype="bfloat16", threads=2)
    assert set(AXES) == set(case.to_dict())
    line = to_frame([make_row(case)]).iloc[0]
    assert {axis: line[axis] for axis in AXES} == case.to_dict()


def test_the_order_of_shards_and_rows_does_not_change_the_table(tmp_path: Path) -> None:
    rows = [make_row(make_case(n), name) for n in (1, 2) for name in ("a", "b")]
    one = harness.load(store_run(tmp_path, rows, "one"))
    other = harness.load(store_run(tmp_path, rows[::-1], "other"))
    pd.testing.assert_frame_equal(one, other)


def table_in(readme: str, heading: str) -> list[list[str]]:
    section = readme.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_documented_columns_are_those_of_the_code() -> None:
    documented = table_in(README.read_text(), "Columns of the DataFrame")
    kinds = {"text": "string"}
    assert documented == [[f"`{c.name}`", kinds.get(c.kind, c.kind), c.meaning] for c in COLUMNS]


def test_the_documented_row_fields_are_those_of_the_code() -> None:
    import json
    from dataclasses import fields

    documented = [line[0].strip("`") for line in table_in(README.read_text(), "Fields of a row")]
    assert set(documented) == set(json.loads(to_json(make_row())))
    assert {f.name for f in fields(Row)} <= set(documented)


def test_the_documented_axes_are_those_of_a_case() -> None:
    text = README.read_text()
    assert all(f"`{axis}`" in text for axis in Case.to_dict(make_case()))


def test_storing_and_loading_need_no_torch(tmp_path: Path) -> None:
    run = store_run(tmp_path, [make_row()])
    code = (
        "import sys, harness.store, harness.statistics.intervals, harness.statistics.verdicts\n"
        "import harness.statistics.dependence\n"
        f"import harness; assert len(harness.load({str(run)!r})) == 1\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=README.parents[1])


def test_the_store_can_be_imported_without_pandas() -> None:
    code = "import sys, harness.store; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=README.parents[1])


def test_a_row_keeps_what_was_measured_before_it_failed(tmp_path: Path) -> None:
    row = replace(make_row(status=Status.TIMEOUT), first_call_s=2.5)
    assert harness.load(store_run(tmp_path, [row]))["first_call_s"][0] == 2.5


def test_the_share_of_the_ceiling_is_that_of_the_one_that_binds() -> None:
    from harness.columns import to_frame

    row = make_row(
        samples=Samples(((1.0,),), (0,)),
        flop_count=10,
        min_bytes=8,
        ceiling_flop_per_s=20.0,
        ceiling_bytes_per_s=10.0,
    )
    line = to_frame([row]).iloc[0]
    assert (line["ceiling_share"], line["ceiling_binds"]) == (0.8, "memory")
    compute_bound = replace(row, ceiling_bytes_per_s=100.0)
    line = to_frame([compute_bound]).iloc[0]
    assert (line["ceiling_share"], line["ceiling_binds"]) == (0.5, "compute")
    unknown = to_frame([replace(row, ceiling_flop_per_s=None)]).iloc[0]
    assert pd.isna(unknown["ceiling_share"])
    assert unknown["ceiling_binds"] == "none"
