"""One side of a comparison of two environments: a process that times bursts when it is asked.

Run as ``python -m harness.measuring.side`` by ``harness.remeasure``, with the Python of either
environment. Speaks JSON lines: ``{"open": {...}}`` prepares a case and answers what it found,
``{"burst": r, "calls": k}`` answers the seconds of r samples, ``{"end": true}`` ends. Whatever
libraries print goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import torch

from harness.attention import Case
from harness.inputs.sets import make_inputs
from harness.measuring import allocator
from harness.measuring.clock import Clock
from harness.measuring.device_clock import make_clock
from harness.measuring.modes import ModeCall, make_call
from harness.numerics.judgement import judge, make_reference
from harness.plugins.registry import load_implementation
from harness.settings import ImplementationSpec

_WARMUP_S = 0.3
_WARMUP_CALLS = 3


class _Side:
    """The prepared call of one case, if any."""

    def __init__(self) -> None:
        self._call: ModeCall | None = None
        self._clock: Clock | None = None

    def open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Prepare, judge and warm up; the answer has ``reasons`` where that can't be."""
        case = Case.from_dict(request["case"])
        allocator.set_for_timing(case.allocator)
        torch.set_num_threads(case.threads)
        torch.manual_seed(case.seed)
        implementation = load_implementation(ImplementationSpec(**request["spec"]))
        reasons = implementation.unsupported_reasons(case)
        if reasons:
            return {"status": "unsupported", "reasons": list(reasons)}
        inputs = make_inputs(case)
        reference = make_reference(case, inputs)
        self._call = make_call(implementation, case, inputs)
        self._clock = make_clock(case.device, implementation)
        outputs = self._call.named_outputs(self._clock.sample(self._call.run, 1).result)
        judgement = judge(reference, outputs, implementation.contract(case))
        return {
            "status": "incorrect" if judgement.reasons else "ok",
            "reasons": list(judgement.reasons),
            "errors": judgement.errors,
            "version": implementation.version(),
            "call_s": self._warm_up(),
        }

    def _warm_up(self) -> float:
        started, times = time.perf_counter(), list[float]()
        while len(times) < _WARMUP_CALLS or time.perf_counter() - started < _WARMUP_S:
            times += self.burst({"burst": 1, "calls": 1})["times_s"]
        return min(times[len(times) // 2 :])

    def burst(self, request: Mapping[str, Any]) -> dict[str, list[float]]:
        """One untimed call, then so many timed samples of so many calls."""
        assert self._call is not None, "open comes first"
        assert self._clock is not None
        run, clock = self._call.run, self._clock
        run()
        calls = int(request["calls"])
        return {"times_s": [clock.sample(run, calls).time_s for _ in range(request["burst"])]}


def serve(questions: TextIO, answers: TextIO) -> None:
    """Answer one line for each line, until the end."""
    side = _Side()
    for line in questions:
        request = json.loads(line)
        if "end" in request:
            return
        action: Callable[[], Mapping[str, Any]]
        if "open" in request:
            action = lambda: side.open(request["open"])  # noqa: B023, E731
        else:
            action = lambda: side.burst(request)  # noqa: B023, E731
        answer: Mapping[str, Any]
        try:
            answer = action()
        except Exception as error:  # the other process shows it; this one has no user
            answer = {"status": "error", "reasons": [f"{type(error).__name__}: {error}"]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Keep the protocol's pipe for itself: prints of libraries must not end up in it."""
    torch.set_grad_enabled(False)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
