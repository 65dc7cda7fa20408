"""The table of how exact each implementation was."""

from __future__ import annotations

from pathlib import Path

from harness.report.content import content_of
from harness.report.exactness import exactness_table
from harness.rows import Row, Status
from tests.synthetic import make_case, make_row, store_run


def row(name: str, inputs: str, error_u: float, share: float | None, **fields: object) -> Row:
    measures = {"scaled_u": error_u, "bound_share": share}
    case = make_case(inputs=inputs, dtype="bfloat16")
    return make_row(case=case, implementation=name, errors={"o": measures}, **fields)


def test_gaussian_and_worst_inputs_stand_beside_the_share_of_the_bound(tmp_path: Path) -> None:
    rows = [
        row("sdpa", "gaussian", 0.5, 0.25),
        row("sdpa", "spikes", 2.0, 0.125),
        row("naive", "gaussian", 1.0, None),
        row("mine", "gaussian", 99.0, 40.0, status=Status.INCORRECT),
    ]
    table = exactness_table(content_of(store_run(tmp_path, rows)))
    lines = {line[0].text: [field.text for field in line[1:]] for line in table.lines}
    assert lines["sdpa"] == ["bfloat16", "0.50 u", "2.0 u", "spikes", "25 %"]
    assert lines["naive"][-1] == "-"
    assert "mine" not in lines
    assert "lse" not in table.columns


def test_the_log_sum_exp_of_who_offers_it_has_a_column(tmp_path: Path) -> None:
    measures = {"scaled_u": 0.5, "bound_share": 0.25}
    both = {"o": measures, "lse": {"scaled_u": 0.1, "bound_share": 0.75}}
    case = make_case(dtype="bfloat16")
    rows = [
        make_row(case=case, implementation="fused", errors=both),
        make_row(case=case, implementation="naive", errors={"o": measures}),
    ]
    table = exactness_table(content_of(store_run(tmp_path, rows)))
    lines = {line[0].text: [field.text for field in line] for line in table.lines}
    assert table.columns[-1] == "lse"
    assert lines["fused"][-2:] == ["75 %", "0.10 u"]
    assert lines["naive"][-2:] == ["25 %", "-"]
