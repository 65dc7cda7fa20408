"""One kernel under several names."""

from __future__ import annotations

import pandas as pd

from harness.analysis.cells import cells_of
from harness.analysis.kernels import SharedKernel, shared_kernels
from harness.columns import to_frame
from harness.rows import Row, Status
from tests.synthetic import make_case, make_row


def cells(*rows: Row) -> pd.DataFrame:
    return cells_of(to_frame(rows))


def row(implementation: str, kernel: str | None, seq_len: int = 64, **fields: object) -> Row:
    case = make_case(seq_len=seq_len)
    return make_row(case=case, implementation=implementation, kernel=kernel, **fields)


def test_two_names_of_one_kernel_are_found_with_the_number_of_cases() -> None:
    found = shared_kernels(
        cells(
            row("sdpa", "sdpa:flash"),
            row("sdpa_flash", "sdpa:flash"),
            row("naive", "naive"),
            row("sdpa", "sdpa:flash", 128),
            row("sdpa_flash", "sdpa:flash", 128),
            row("sdpa", "sdpa:math", 256),
            row("sdpa_flash", "sdpa:flash", 256),
        )
    )
    assert found == (SharedKernel("sdpa:flash", ("sdpa", "sdpa_flash"), 2),)


def test_a_kernel_that_is_called_through_another_package_is_the_same_kernel() -> None:
    found = shared_kernels(
        cells(
            row("xformers_cutlass", "sdpa:efficient via xformers cutlassF-pt"),
            row("sdpa_efficient", "sdpa:efficient"),
        )
    )
    names = ("sdpa_efficient", "xformers_cutlass")
    assert found == (SharedKernel("sdpa:efficient", names, 1),)


def test_what_did_not_run_right_or_names_no_kernel_shares_none() -> None:
    assert (
        shared_kernels(
            cells(
                row("sdpa", "sdpa:flash"),
                row("sdpa_flash", "sdpa:flash", status=Status.INCORRECT),
                row("a", None),
                row("b", None),
            )
        )
        == ()
    )


def test_a_run_without_shared_kernels_has_none() -> None:
    assert shared_kernels(cells(row("naive", "naive"))) == ()
