"""The whole pipeline on implementations that fail in every known way.

Each planned pair gives exactly one row with a true status, and the others of its case and the
rest of the sweep are untouched.
"""

import json

import pytest

from harness.rows import Status
from harness.settings import ImplementationSpec
from harness.store import create_run, read_rows
from tests.pipeline import Watching, a_case, fake, sweep

FAULTS = [
    (fake("Raises"), Status.ERROR, "planted fault"),
    (fake("Raises", at="prepare"), Status.ERROR, "planted fault"),
    (fake("Raises", at="reasons"), Status.ERROR, "planted fault"),
    (fake("Segfaults"), Status.CRASHED, "SIGSEGV"),
    (fake("Segfaults", at="reasons"), Status.CRASHED, "SIGSEGV"),
    (fake("Exits"), Status.CRASHED, "sys.exit"),
    (fake("Exits", hard=True, code=7), Status.CRASHED, "exit code 7"),
    (fake("ReturnsNaN"), Status.INCORRECT, ""),
    (fake("ReturnsZeros"), Status.INCORRECT, ""),
    (fake("ReturnsValue"), Status.INCORRECT, ""),
    (fake("ReturnsUninitialised"), Status.INCORRECT, ""),
    (fake("WrongShape"), Status.INCORRECT, ""),
    (fake("WrongDType"), Status.INCORRECT, ""),
    (fake("OffByFactor"), Status.INCORRECT, ""),
    (fake("WrongLogSumExp"), Status.INCORRECT, "lse: "),
    (fake("WrongLogSumExp", wrong_output=True), Status.INCORRECT, "call with log-sum-exp: o: "),
    (fake("MemoisesOutput"), Status.INCORRECT, ""),
    (fake("MemoisesByInputs"), Status.INCORRECT, "in place"),
    (fake("ReturnsNoTensor"), Status.ERROR, "list"),
    (fake("PreparesNothing"), Status.ERROR, "NoneType"),
    (fake("AlwaysUnsupported"), Status.UNSUPPORTED, "seq_len=33 (at most -1)"),
]


@pytest.mark.parametrize(
    ("spec", "status", "said"), FAULTS, ids=lambda v: str(getattr(v, "name", v))
)
def test_each_fault_gives_one_row_with_its_status_and_spares_the_others(
    tmp_path, spec, status, said
):
    rows = sweep(tmp_path, [spec, fake("Right")])
    assert len(rows) == 2
    row = rows[spec.name, 33, 0]
    assert row.status is status, (row.reasons, row.log)
    assert any(said in reason for reason in row.reasons), row.reasons
    right = rows["Right", 33, 0]
    assert right.status is Status.OK, (right.reasons, right.log)
    assert right.is_baseline
    assert len(right.samples.times_s) >= 6


def test_a_hang_is_a_timeout(tmp_path):
    rows = sweep(tmp_path, [fake("Hangs"), fake("Right")], call_timeout_s=1.0)
    assert rows["Hangs", 33, 0].status is Status.TIMEOUT
    assert "call_timeout_s" in rows["Hangs", 33, 0].reasons[0]
    assert rows["Right", 33, 0].status is Status.OK


def test_allocation_without_end_is_out_of_memory_and_the_next_case_is_fine(tmp_path):
    rows = sweep(
        tmp_path,
        [fake("AllocatesWithoutEnd"), fake("Right")],
        [a_case(33), a_case(34)],
        memory_limit_bytes=2**30,
    )
    for seq_len in (33, 34):
        assert rows["AllocatesWithoutEnd", seq_len, 0].status is Status.OUT_OF_MEMORY
        assert rows["Right", seq_len, 0].status is Status.OK


def test_inputs_that_cannot_be_allocated_end_their_case_only(tmp_path):
    huge = a_case(2**17)
    rows = sweep(tmp_path, [fake("Right")], [huge, a_case(33)], memory_limit_bytes=2**26)
    assert rows["Right", 2**17, 0].status is Status.OUT_OF_MEMORY
    assert rows["Right", 33, 0].status is Status.OK


def test_a_traceback_is_kept_in_the_row(tmp_path):
    row = sweep(tmp_path, [fake("Raises", message="told so")])["Raises", 33, 0]
    assert "RuntimeError: told so" in row.reasons[0]
    assert "Traceback" in row.log
    assert "fakes.py" in row.log


def test_an_implementation_that_can_not_be_loaded_is_an_error_of_its_own_rows(tmp_path):
    missing = fake("NoSuchClass")
    rows = sweep(tmp_path, [missing, fake("Right")], [a_case(33), a_case(34)])
    for seq_len in (33, 34):
        assert rows["NoSuchClass", seq_len, 0].status is Status.ERROR
        assert "NoSuchClass" in rows["NoSuchClass", seq_len, 0].reasons[0]
        assert rows["Right", seq_len, 0].status is Status.OK


def test_a_device_that_is_missing_is_unsupported_with_its_reason(tmp_path):
    rows = sweep(tmp_path, [fake("Right")], [a_case(33, device="cuda"), a_case(34)])
    row = rows["Right", 33, 0]
    if row.status is Status.OK:
        pytest.skip("this machine has a CUDA device")
    assert row.status is Status.UNSUPPORTED
    assert "cuda" in row.reasons[0]
    assert rows["Right", 34, 0].status is Status.OK


def test_every_pass_is_a_process_of_its_own_and_memory_is_measured_in_the_first(tmp_path):
    rows = sweep(tmp_path, [fake("Right"), fake("SpinFor")], passes=2)
    first, second = rows["Right", 33, 0], rows["Right", 33, 1]
    assert first.process != second.process
    assert first.process == rows["SpinFor", 33, 0].process
    assert first.peak_alloc_bytes > 0
    assert second.peak_alloc_bytes is None
    assert "pass 0" in second.memory_method


def test_a_resumed_run_measures_what_is_missing_only(tmp_path):
    run = create_run(tmp_path)
    specs = [fake("Right"), fake("SpinFor")]
    cases = [a_case(n) for n in (33, 34, 35)]
    sweep(tmp_path, specs, cases[:2], run=run)
    before = {row.pair: row.samples for row in read_rows(run)}
    watching = Watching()
    rows = sweep(tmp_path, specs, cases, run=run, observer=watching)
    assert len(rows) == 6
    assert {row.case.config.seq_len for row in watching.rows} == {35}
    assert before == {p: r.samples for r in read_rows(run) if (p := r.pair) in before}


# C55
def test_peak_memory_is_what_the_call_takes(tmp_path):
    row = sweep(tmp_path, [fake("AllocatesBytes", mib=64)])["AllocatesBytes", 33, 0]
    assert row.peak_alloc_bytes == pytest.approx(64 * 2**20, rel=0.1)
    assert row.peak_rss_bytes is None or row.peak_rss_bytes == pytest.approx(64 * 2**20, rel=0.1)
    assert "allocator_events" in row.memory_method


# C53, C54
@pytest.mark.parametrize("order", [(200, 100), (100, 200)])
def test_a_peak_does_not_remember_the_implementation_before_it(tmp_path, order):
    specs = [
        ImplementationSpec(f"mib{mib}", "tests.fakes:AllocatesBytes", {"mib": mib}) for mib in order
    ]
    rows = sweep(tmp_path, specs)
    for mib in order:
        row = rows[f"mib{mib}", 33, 0]
        assert row.peak_alloc_bytes == pytest.approx(mib * 2**20, rel=0.02)
        assert row.peak_rss_bytes is None or row.peak_rss_bytes == pytest.approx(
            mib * 2**20, rel=0.05
        )


# C50
def test_the_first_call_has_its_own_column(tmp_path):
    row = sweep(tmp_path, [fake("FirstCallsSlow", calls=1, factor=20.0, seconds=0.002)])[
        "FirstCallsSlow", 33, 0
    ]
    assert row.first_call_s >= 0.04
    assert min(min(burst) for burst in row.samples.times_s) < 0.02


# C60
def test_every_implementation_sees_the_threads_of_the_case(tmp_path):
    rows = sweep(tmp_path, [fake("ChangesThreads"), fake("ReportsThreads")], [a_case(threads=2)])
    assert rows["ReportsThreads", 33, 0].kernel == "threads=2"
    assert any("changed_threads" in flag for flag in rows["ChangesThreads", 33, 0].flags)


@pytest.mark.parametrize("mode", ["forward_train", "backward", "forward_backward"])
def test_training_modes_are_measured_and_their_gradients_judged(tmp_path, mode):
    row = sweep(tmp_path, [fake("Right")], [a_case(33, mode=mode)])["Right", 33, 0]
    assert row.status is Status.OK, row.reasons
    gradients = {"dq", "dk", "dv"} if mode != "forward_train" else set()
    assert gradients <= set(row.errors)


def test_a_layer_is_measured(tmp_path):
    row = sweep(tmp_path, [fake("Right")], [a_case(33, scope="layer")])["Right", 33, 0]
    assert row.status is Status.OK, row.reasons
    assert "y" in row.errors


def test_a_log_sum_exp_that_is_offered_has_its_errors_in_the_row(tmp_path):
    specs = [ImplementationSpec("chunked", "implementations.chunked:Chunked"), fake("Right")]
    rows = sweep(tmp_path, specs)
    assert rows["chunked", 33, 0].status is Status.OK, rows["chunked", 33, 0].reasons
    assert 0 < rows["chunked", 33, 0].errors["lse"]["bound_share"] < 1
    assert "lse" not in rows["Right", 33, 0].errors


def test_cold_caches_time_one_call_a_sample(tmp_path):
    row = sweep(tmp_path, [fake("Right")], [a_case(33, cache="cold")], max_rounds=3)["Right", 33, 0]
    assert row.samples.calls_per_sample == 1


def test_the_run_holds_its_environment_with_the_ceilings(tmp_path):
    run = create_run(tmp_path)
    row = sweep(tmp_path, [fake("Right")], run=run)["Right", 33, 0]
    environment = json.loads((run / "environment.json").read_text())
    assert environment["key"] == row.environment_key
    assert environment["ceilings"]["flop_per_s"]["cpu/float32/1"] == row.ceiling_flop_per_s
    assert row.ceiling_bytes_per_s > 0


def test_a_row_knows_how_to_repeat_itself(tmp_path):
    row = sweep(tmp_path, [fake("Right")])["Right", 33, 0]
    assert row.repro.startswith("mha-bench sweep ")
    assert "seq_len=33" in row.repro


def test_naive_attention_takes_two_score_matrices_and_the_output(tmp_path):
    naive = ImplementationSpec("naive", "implementations.naive:Naive")
    case = a_case(512, hidden_size=64, num_heads=2, batch_size=1)
    row = sweep(tmp_path, [naive], [case])["naive", 512, 0]
    assert row.expected_alloc_bytes == (2 * 2 * 512 * 512 + 512 * 64) * 4
    assert row.peak_alloc_bytes == row.expected_alloc_bytes
    assert row.output_bytes == 512 * 64 * 4
    assert row.memory_details["saved_bytes"] == 0


def test_training_saves_what_the_backward_pass_needs(tmp_path):
    naive = ImplementationSpec("naive", "implementations.naive:Naive")
    case = a_case(512, hidden_size=64, num_heads=2, batch_size=1, mode="forward_train")
    row = sweep(tmp_path, [naive], [case])["naive", 512, 0]
    scores = 2 * 512 * 512 * 4
    assert scores <= row.memory_details["saved_bytes"] < 1.2 * scores
