"""The isolated process: whatever it does, the watcher learns how it ended and who was in hand."""

import os
import signal
from multiprocessing import forkserver

import pytest

from harness.worker import Ending, Exit, ForkServer, Limits


@pytest.fixture(scope="module")
def server():
    return ForkServer()


def run(server, target, payload=None, **limits):
    messages = list(server.run(f"tests.worker_targets:{target}", payload, Limits(**limits)))
    assert isinstance(messages[-1], Exit)
    return messages[:-1], messages[-1]


def test_messages_arrive_in_order_from_a_process_of_its_own(server):
    messages, end = run(server, "echo", {"a": (1, 2)})
    assert messages[0] == {"a": (1, 2)}
    assert messages[1] != os.getpid()
    assert end == Exit(Ending.FINISHED)


def test_a_segmentation_fault_is_a_crash_with_culprit_and_traceback(server):
    _, end = run(server, "segfault", 3)
    assert (end.ending, end.culprit) == (Ending.CRASHED, 3)
    assert "SIGSEGV" in end.reason
    assert "Fatal Python error" in end.log


def test_an_exit_code_is_a_crash_that_names_it(server):
    _, end = run(server, "leave", 7)
    assert (end.ending, end.culprit) == (Ending.CRASHED, 0)
    assert "exit code 7" in end.reason


def test_a_hang_is_ended_after_the_stall_limit(server):
    _, end = run(server, "hang", 2, stall_s=0.5)
    assert (end.ending, end.culprit) == (Ending.TIMEOUT, 2)
    assert "0.5 s" in end.reason


def test_progress_keeps_a_long_worker_alive(server):
    _, end = run(server, "hang_after_progress", 5, stall_s=1.0)
    assert end.ending is Ending.FINISHED


def test_what_a_dead_worker_printed_is_kept(server):
    _, end = run(server, "print_and_die")
    assert "said on the output" in end.log
    assert "said on the error" in end.log
    assert not end.ran_out_of_memory


def test_an_abort_after_a_failed_allocation_is_out_of_memory(server):
    _, end = run(server, "abort_with_bad_alloc")
    assert end.ending is Ending.CRASHED
    assert end.ran_out_of_memory


def test_a_memory_limit_makes_the_allocation_fail_in_the_process(server):
    assert run(server, "allocate", 2**30, memory_bytes=2**28)[0] == ["MemoryError"]
    assert run(server, "allocate", 2**20, memory_bytes=2**28)[0] == ["allocated"]


def test_the_starting_programs_main_module_is_not_imported_again(server):
    messages, _ = run(server, "main_module_name")
    assert messages[0] is None or "forkserver" in messages[0] or "multiprocessing" in messages[0]


def test_a_target_that_does_not_exist_is_a_crash_that_says_so(server):
    _, end = run(server, "no_such_function")
    assert end.ending is Ending.CRASHED
    assert "no_such_function" in end.log


def test_leaving_a_run_early_ends_the_worker(server):
    messages = server.run("tests.worker_targets:hang_after_progress", 100, Limits())
    messages.close()
    assert run(server, "echo", 1)[0][0] == 1


def test_an_interrupt_waits_until_the_worker_is_asked_for_as_a_whole(server, monkeypatch):
    ask, asked = forkserver.connect_to_new_process, []

    def ask_while_interrupted(fds):
        signal.raise_signal(signal.SIGINT)
        asked.append(len(fds))
        return ask(fds)

    monkeypatch.setattr(forkserver, "connect_to_new_process", ask_while_interrupted)
    # where the tests themselves run in the background, a shell has it ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(server, "echo", 1)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(asked) == 1
