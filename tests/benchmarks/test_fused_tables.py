"""The tables of ``test_fused`` say what their rounds say: states apart, targets judged, kept."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.attention import DType
from tests.benchmarks.fused.attention_tables import FORWARD, SHAPES
from tests.benchmarks.fused.cells import (
    Cell,
    Estimate,
    best_calibrations,
    estimate,
    quiet_rounds,
    ratio_of,
)
from tests.benchmarks.fused.engine import Engine, Place
from tests.benchmarks.fused.errors import ErrorLine, error_verdicts
from tests.benchmarks.fused.layer_tables import LAYER
from tests.benchmarks.fused.mask_tables import WINDOW
from tests.benchmarks.fused.plans import FUSED, SDPA, THREE_PRODUCTS, Choice
from tests.benchmarks.fused.run import TABLES, Results
from tests.benchmarks.fused.show import all_verdicts
from tests.benchmarks.fused.verdicts import lines_of, reaches

ROUNDS = 8


def cell_with(ratio: float, **changes: object) -> Cell:
    times = {SDPA: [ratio * 1e-3] * ROUNDS, FUSED: [1e-3] * ROUNDS}
    cell = Cell("forward", "float32", "H8 S128 D96 full", 1, times, [1e12] * (ROUNDS + 1))
    return replace(cell, **changes)


def test_rounds_beside_a_slow_calibration_never_enter_the_quiet_figure() -> None:
    slow_from = 3  # the calibration before round 3, which is the one after round 2
    calibration = [1e12] * slow_from + [3e11] * (ROUNDS + 1 - slow_from)
    times = {SDPA: [2e-3] * 2 + [9e-3] * (ROUNDS - 2), FUSED: [1e-3] * ROUNDS}
    cell = cell_with(2.0, calibration=calibration, times_s=times)
    is_quiet = quiet_rounds(cell, best_calibrations([cell])[1])
    assert is_quiet.tolist() == [True, True] + [False] * (ROUNDS - 2)
    quiet, slow = (estimate(cell, ratio_of(SDPA, FUSED), x) for x in (is_quiet, ~is_quiet))
    assert quiet is not None
    assert slow is not None
    assert (quiet.value, quiet.rounds) == (pytest.approx(2.0), 2)
    assert (slow.value, slow.calibration) == (pytest.approx(9.0), 3e11)


def test_a_cell_without_quiet_rounds_is_left_out_of_the_mean_and_counted() -> None:
    quiet, slow = cell_with(2.0), cell_with(8.0, calibration=[1e11] * (ROUNDS + 1))
    mean, least = all_verdicts([FORWARD], [quiet, slow], best_calibrations([quiet, slow]))
    assert mean.found is not None
    assert mean.found.value == pytest.approx(2.0)
    assert (mean.quiet_cells, mean.cells) == (1, 2)
    assert mean.slow is not None
    assert mean.slow.value == pytest.approx(8.0)
    assert least.where == "H8 S128 D96 full, 1 thread"


def test_the_mean_is_geometric_and_its_target_is_that_of_the_issue() -> None:
    cells = [cell_with(1.0), cell_with(4.0)]
    mean, least = all_verdicts([FORWARD], cells, best_calibrations(cells))
    assert mean.found is not None
    assert mean.found.value == pytest.approx(2.0)
    assert (mean.target, mean.reached) == (1.6, "yes")
    assert (least.target, least.reached) == (1.05, "no")


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (1.7, 1.65, 1.75, "yes"),
        (1.7, 1.5, 1.9, "yes?"),
        (1.5, 1.4, 1.7, "no?"),
        (1.5, 1, 1.55, "no"),
    ],
)
def test_an_interval_that_holds_the_target_is_marked(
    value: float, low: float, high: float, words: str
) -> None:
    assert reaches(Estimate(value, low, high, ROUNDS, 1e12), 1.6) == words


def test_a_layer_is_held_to_what_its_attention_allows() -> None:
    times = {SDPA: 10.0, FUSED: 9.0, f"attention of {SDPA}": 4.0, f"attention of {FUSED}": 2.0}
    cell = cell_with(1.0, table="layer", times_s={n: [t] * ROUNDS for n, t in times.items()})
    share = next(aim for aim in LAYER.aims("float32") if "allows" in aim.words)
    (line,) = lines_of([cell], share, best_calibrations([cell]))
    assert line.quiet is not None
    assert line.quiet.value == pytest.approx((10 / 9) / (10 / 8))


def test_a_cost_that_grows_with_the_square_of_the_length_keeps_a_quarter_of_its_speed() -> None:
    (recipe, *_) = WINDOW.recipes(Choice(threads=[1]))
    times = {name: [float(name[1:]) ** 2] * ROUNDS for name in recipe.scale}
    cell = cell_with(1.0, times_s=times, scale=recipe.scale, group="float32, length")
    (aim,) = WINDOW.aims(cell.group)
    (line,) = lines_of([cell], aim, best_calibrations([cell]))
    assert line.quiet is not None
    assert line.quiet.value == pytest.approx(0.25, rel=0.1)


def test_errors_are_judged_by_the_largest_ratio() -> None:
    lines = [
        ErrorLine("float32", FUSED, name, rms, 1e-7, 0.1)
        for name, rms in (("a", 1e-7), ("b", 2e-7))
    ]
    _, largest, share = error_verdicts(lines)
    assert largest.found is not None
    assert (largest.found.value, largest.where, largest.reached) == (2.0, "b", "no")
    assert share.reached == "yes"


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    kept = Results([cell_with(2.0)], [ErrorLine("float32", FUSED, "a", 1e-7, 1e-7, 0.1)], ["here"])
    kept.save(tmp_path / "rounds.json")
    assert Results.load(tmp_path / "rounds.json") == kept


def test_the_forward_table_has_every_shape_mask_dtype_and_number_of_threads() -> None:
    places = [recipe.place for recipe in FORWARD.recipes(Choice(threads=[1, 2]))]
    assert len(set(places)) == len(places) == len(SHAPES) * 2 * 2 * 2
    rivals = Choice().rivals(DType.FLOAT32)
    assert list(rivals) == [SDPA, FUSED, THREE_PRODUCTS]
    assert list(Choice().rivals(DType.BFLOAT16)) == [SDPA, FUSED]


def test_tables_for_older_processors_are_measured_in_processes_of_their_own() -> None:
    held = {name: dict(table.environment) for name, table in TABLES.items() if table.environment}
    assert held == {
        "avx2_aten": {"ATEN_CPU_CAPABILITY": "avx2"},
        "avx2_all": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    }
    assert not any(TABLES[name].is_at_home() for name in held)


def test_a_cell_has_one_calibration_more_than_rounds_and_sees_a_slower_call() -> None:
    threads = torch.get_num_threads()
    short, long = torch.ones(1000), torch.ones(100_000)
    runs = {"long": (lambda: long.exp(),), "short": (lambda: short.exp(),)}
    cell = Engine(budget_s=0.01).measure(Place("t", "g", "l", 1), runs)
    torch.set_num_threads(threads)
    rounds = {len(times) for times in cell.times_s.values()}
    assert rounds == {len(cell.calibration) - 1}
    assert np.median(np.divide(cell.times_s["long"], cell.times_s["short"])) > 2
    assert all(math.isfinite(seen) and seen > 0 for seen in cell.calibration)
