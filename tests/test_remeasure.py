"""Old and new environment in turns: paired, judged, and survived when one side fails."""

from __future__ import annotations

import io
import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.analysis.between import BETWEEN_TYPES, RunComparison
from harness.analysis.gate import breaches_between
from harness.analysis.upgrade import upgrade
from harness.errors import WorkerError
from harness.measuring import side
from harness.remeasure import environment_for, remeasure
from harness.settings import ImplementationSpec
from tests.synthetic import make_case

CASE = make_case(64, threads=1)
SPEC = ImplementationSpec("naive", "implementations.naive:Naive")
FAKE = """#!{python}
import json, random, sys
if sys.argv[1] == "-c":
    sys.exit({probe})
for line in sys.stdin:
    request = json.loads(line)
    if "open" in request:
        answer = {opened}
    else:
        times = [{seconds} * random.lognormvariate(0, 0.01) for _ in range(request["burst"])]
        answer = {{"times_s": times}}
    if answer is None:
        sys.exit(3)
    print(json.dumps(answer), flush=True)
"""


def fake_python(folder: Path, name: str, seconds: float = 1e-3, **changed: Any) -> str:
    """An executable that answers like a side of the given speed."""
    opened = {"status": "ok", "call_s": seconds, "version": name, "reasons": [],
              "errors": {"o": {"scaled_u": 1.5}}} | changed.pop("opened", {})  # fmt: skip
    path = folder / name
    text = FAKE.format(
        python=sys.executable, seconds=seconds, probe=changed.get("probe", 0),
        opened=changed.get("answer", repr(opened)),
    )  # fmt: skip
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def compared(old: str, new: str, passes: int = 2) -> RunComparison:
    found = remeasure([(CASE, SPEC)], old, new, passes=passes, rounds=20)
    return upgrade(found, BETWEEN_TYPES)


def test_a_slower_new_environment_is_found_and_fails_the_gate(tmp_path: Path) -> None:
    result = compared(fake_python(tmp_path, "old"), fake_python(tmp_path, "new", 1.3e-3))
    (line,) = result.table.to_dict("records")
    assert line["verdict"] == "slower"
    assert line["ratio"] == pytest.approx(1.3, rel=0.02)
    assert breaches_between(result, ["slower"]) == [f"slower: naive on {CASE.id}"]
    assert result.circumstances == ("naive: old -> new",)
    assert "Paired" in result.statement[0]


def test_equal_environments_are_equivalent(tmp_path: Path) -> None:
    result = compared(fake_python(tmp_path, "old"), fake_python(tmp_path, "new"), passes=6)
    assert set(result.table["verdict"]) == {"equivalent"}
    assert breaches_between(result, ["slower", "less_exact", "incorrect"]) == []


def test_a_new_environment_that_is_less_exact_or_wrong_is_found(tmp_path: Path) -> None:
    old = fake_python(tmp_path, "old")
    worse = fake_python(tmp_path, "worse", opened={"errors": {"o": {"scaled_u": 9.0}}})
    assert set(compared(old, worse).table["findings"]) == {"less_exact"}
    wrong = fake_python(tmp_path, "wrong", opened={"status": "incorrect", "reasons": ["off by 3"]})
    (line,) = compared(old, wrong).table.to_dict("records")
    assert (line["findings"], line["verdict"], line["why"]) == ("incorrect", "none", "off by 3")


def test_a_side_that_dies_is_a_finding_and_not_the_end(tmp_path: Path) -> None:
    dying = fake_python(tmp_path, "dying", answer="None")
    (line,) = compared(fake_python(tmp_path, "old"), dying).table.to_dict("records")
    assert line["findings"] == "crashed"
    assert "ended with code 3" in line["why"]


def test_a_python_that_cannot_run_a_side_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"can't run .*absent"):
        environment_for(str(tmp_path / "absent"))
    with pytest.raises(WorkerError, match="pip install mha-bench"):
        environment_for(fake_python(tmp_path, "bare", probe=1))


def test_progress_is_told_for_every_pair(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    python = fake_python(tmp_path, "python")
    pairs = [(CASE, SPEC), (make_case(128, threads=1), SPEC)]
    remeasure(pairs, python, python, passes=1, rounds=2, on_pair=lambda *at: told.append(at))
    assert told == [(0, 2), (1, 2), (2, 2)]


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    """A side sets threads and grad mode of its process, which here is everybody's."""
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    yield
    torch.set_num_threads(threads)
    torch.set_grad_enabled(grad)


def asked(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    questions = io.StringIO("".join(json.dumps(request) + "\n" for request in requests))
    answers = io.StringIO()
    side.serve(questions, answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


@pytest.mark.usefixtures("torch_as_it_was")
def test_a_real_side_prepares_judges_and_times() -> None:
    spec = {"name": "naive", "target": "implementations.naive:Naive", "options": {}}
    opened, burst = asked(
        {"open": {"case": CASE.to_dict(), "spec": spec}}, {"burst": 3, "calls": 2}, {"end": True}
    )
    assert opened["status"] == "ok", opened
    assert opened["call_s"] > 0
    assert opened["errors"]["o"]["scaled_u"] > 0
    assert len(burst["times_s"]) == 3
    assert all(0 < t < 1 for t in burst["times_s"])


@pytest.mark.usefixtures("torch_as_it_was")
def test_what_a_side_cannot_do_is_an_answer_with_its_reason() -> None:
    absent = {"name": "x", "target": "nowhere:Nothing", "options": {}}
    (answer,) = asked({"open": {"case": CASE.to_dict(), "spec": absent}})
    assert answer["status"] == "error"
    assert "nowhere" in answer["reasons"][0]
    spec = {"name": "raises", "target": "tests.fakes:Raises", "options": {"at": "call"}}
    (answer,) = asked({"open": {"case": CASE.to_dict(), "spec": spec}})
    assert answer["status"] == "error"
