"""What a failed step leaves behind, and what a worker has at hand before its memory is limited."""

import subprocess
import sys
import weakref

import pytest

from harness.measuring.attempts import attempt, failed_by
from tests.synthetic import make_row


class Hoard:
    """Something that a weak reference can watch."""


def fails_with(hoard, *, after=None):
    kept = [hoard]
    try:
        if after is not None:
            raise after
    except ValueError as first:
        raise MemoryError(f"no room beside {len(kept)}") from first
    raise MemoryError(f"no room beside {len(kept)}")


@pytest.mark.parametrize("after", [None, ValueError("first")], ids=["alone", "with a cause"])
def test_what_a_failed_step_held_is_free_while_its_exception_is_kept(after):
    hoard = Hoard()
    watched = weakref.ref(hoard)
    held = [hoard]
    del hoard
    problem = attempt(lambda: fails_with(held.pop(), after=after))
    assert isinstance(problem, MemoryError)
    assert watched() is None


def test_the_traceback_of_a_failed_step_is_still_whole():
    problem = attempt(lambda: fails_with(Hoard()))
    row = failed_by(make_row(), problem, "the call")
    assert "in fails_with" in row.log
    assert "no room beside 1" in row.log


def test_a_worker_has_what_the_rounds_need_before_its_memory_is_limited():
    code = (
        "import sys, harness.measuring.preload\n"
        "print(*[name for name in ('numpy.random', 'torch') if name not in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert found.stdout.split() == []
