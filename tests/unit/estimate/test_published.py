"""The estimate against figures that others published of real GPUs: no torch, no GPU."""

from __future__ import annotations

import pytest
from benchmarks.accuracy.estimate.published import Row, read_rows, score, write_page

MEDIAN_ERROR = 0.02
LARGE_ERROR = 0.10
INSIDE_FRAC = 0.9
# What could not be met: the peak of a program in PyTorch 2.1 is 0.6 GiB above the phantom's of the
# same loop, by a cause that its source does not show.
UNMET = {"PMO06"}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(read_rows())


def test_the_table_keeps_its_score(rows: list[Row]) -> None:
    total = score(rows)
    assert total.num_rows >= 45
    assert total.median_error <= MEDIAN_ERROR
    assert total.inside_frac >= INSIDE_FRAC


def test_no_row_is_far_off_but_those_that_are_named(rows: list[Row]) -> None:
    far = {row.id for row in rows if row.is_scored and abs(row.error or 0) > LARGE_ERROR}
    assert far == UNMET


def test_no_verdict_is_fits_where_a_figure_says_that_it_did_not(rows: list[Row]) -> None:
    assert not [row.id for row in rows if row.did_fit is False and row.fits is True]


def test_no_verdict_is_does_not_fit_where_it_ran(rows: list[Row]) -> None:
    assert not [row.id for row in rows if row.did_fit is True and row.fits is False]


def test_every_row_is_one_command_of_the_page(rows: list[Row]) -> None:
    page = write_page(rows)
    assert all(f"ullage estimate {row.arguments}" in page for row in rows)
