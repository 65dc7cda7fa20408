"""Old and new environment side by side: paired rounds across two Pythons.

Two stored runs can't be paired: the machine was another one an hour ago. Here a worker of each
environment holds the same case, and they take turns in random order, round by round, with a second
worker of the old environment as the control. So an upgrade of torch is judged like any other
implementation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.attention import Case
from harness.errors import WorkerError
from harness.settings import ImplementationSpec

OLD, NEW, SHADOW = "old", "new", "shadow"
_ROUNDS = 30
_BURST = 3
_MIN_SAMPLE_S = 200e-6
_MAX_BURST_S = 0.05
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Remeasured:
    """One implementation on one case in both environments.

    Args:
        statuses: By side, ``ok`` or why not, with ``reasons`` beside it.
        times_s: By side and pass, ``[round][call]`` seconds per call; empty where a side failed.
        errors: By side, as in a row.
    """

    case: Case
    implementation: str
    statuses: Mapping[str, str]
    reasons: Mapping[str, Sequence[str]]
    times_s: Mapping[str, Sequence[tuple[tuple[float, ...], ...]]]
    errors: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


class _Worker:
    """A process of one environment, spoken to in lines."""

    def __init__(self, process: subprocess.Popen[str], python: str) -> None:
        self._process, self._python = process, python

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait(timeout=10)
            return {"status": "crashed", "reasons": [f"{self._python} ended with code {code}"]}
        return dict(json.loads(line))


@contextmanager
def _worker(python: str, environment: Mapping[str, str]) -> Iterator[_Worker]:
    process = subprocess.Popen(
        [python, "-m", "harness.measuring.side"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(environment),
    )
    try:
        yield _Worker(process, python)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def environment_for(python: str) -> dict[str, str]:
    """Environment variables with which ``python`` can run a side.

    Its own mha-bench is used where it has one; else this checkout's. An installed mha-bench is
    never lent: its folder holds torch too.

    Raises:
        WorkerError: ``python`` can't be run, or has neither mha-bench nor torch.
    """
    lent = {**os.environ, "PYTHONPATH": str(_ROOT)}
    candidates = [dict(os.environ)]
    if (_ROOT / "pyproject.toml").exists():
        candidates.append(lent)
    said = ""
    for environment in candidates:
        try:
            probe = subprocess.run(
                [python, "-c", "import harness.measuring.side"],
                env=environment, capture_output=True, text=True, timeout=120, check=False,
                cwd=os.path.sep,
            )  # fmt: skip
        except OSError as error:
            raise WorkerError(f"remeasure: can't run {python} ({error.strerror})") from None
        if probe.returncode == 0:
            return environment
        said = (probe.stderr.strip().splitlines() or [""])[-1]
    raise WorkerError(
        f"remeasure: {python} can't run mha-bench ({said}); install it there: "
        f"{python} -m pip install mha-bench"
    )


def remeasure(
    pairs: Sequence[tuple[Case, ImplementationSpec]],
    old_python: str,
    new_python: str = sys.executable,
    passes: int = 3,
    rounds: int = _ROUNDS,
    seed: int = 0,
    on_pair: Callable[[int, int], None] = lambda done, total: None,
) -> list[Remeasured]:
    """Measure every pair in both environments, in alternating rounds.

    Args:
        passes: Fresh processes per pair and side.
        on_pair: Told how many of how many pairs are done.

    Raises:
        WorkerError: one of the Pythons can't run a side.
    """
    sides = {OLD: old_python, NEW: new_python, SHADOW: old_python}
    environments = {python: environment_for(python) for python in {old_python, new_python}}
    found = []
    for position, (case, spec) in enumerate(pairs):
        on_pair(position, len(pairs))
        rng = np.random.default_rng([seed, int(case.key, 16) % 2**32])
        found.append(_pair(case, spec, sides, environments, passes, rounds, rng))
    on_pair(len(pairs), len(pairs))
    return found


def _pair(
    case: Case,
    spec: ImplementationSpec,
    sides: Mapping[str, str],
    environments: Mapping[str, Mapping[str, str]],
    passes: int,
    rounds: int,
    rng: np.random.Generator,
) -> Remeasured:
    times: dict[str, list[tuple[tuple[float, ...], ...]]] = {side: [] for side in sides}
    opened: dict[str, dict[str, Any]] = {}
    for _ in range(passes):
        with ExitStack() as stack:
            workers = {
                side: stack.enter_context(_worker(python, environments[python]))
                for side, python in sides.items()
            }
            request = {"open": {"case": case.to_dict(), "spec": asdict(spec)}}
            opened = {side: worker.ask(request) for side, worker in workers.items()}
            if any(answer["status"] != "ok" for answer in opened.values()):
                break
            for side, bursts in _alternate(workers, opened, rounds, rng).items():
                times[side].append(bursts)
    return Remeasured(
        case=case,
        implementation=spec.name,
        statuses={side: str(answer["status"]) for side, answer in opened.items()},
        reasons={side: tuple(answer.get("reasons", ())) for side, answer in opened.items()},
        times_s=times,
        errors={side: answer.get("errors", {}) for side, answer in opened.items()},
        versions={side: str(answer.get("version", "")) for side, answer in opened.items()},
    )


def _alternate(
    workers: Mapping[str, _Worker],
    opened: Mapping[str, Mapping[str, Any]],
    rounds: int,
    rng: np.random.Generator,
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Bursts ``[round][call]`` of each side; equally long on all, in random order each round."""
    slowest = max(float(answer["call_s"]) for answer in opened.values())
    quickest = min(float(answer["call_s"]) for answer in opened.values())
    calls = max(1, int(np.ceil(_MIN_SAMPLE_S / max(quickest, 1e-9))))
    burst = int(np.clip(_MAX_BURST_S / max(slowest * calls, 1e-9), 1, _BURST))
    bursts: dict[str, list[tuple[float, ...]]] = {side: [] for side in workers}
    names = list(workers)
    for _ in range(rounds):
        for position in rng.permutation(len(names)):
            name = names[position]
            answer = workers[name].ask({"burst": burst, "calls": calls})
            bursts[name].append(tuple(answer.get("times_s", ())))
    return {side: tuple(found) for side, found in bursts.items()}
