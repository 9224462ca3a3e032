"""The figures of public logs, and how the benchmark compares what runs gave with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy.logs.__main__ import read_result
from benchmarks.accuracy.logs.page import origin_of, render
from benchmarks.accuracy.logs.row import HERE, MIB, Result, read_rows
from benchmarks.accuracy.logs.until_peak import print_until_peak

RESULT = Result(
    allocated_mib=102,
    reserved_mib=120,
    warm_mib=100,
    low_bytes=110 * MIB,
    high_bytes=120 * MIB,
    assumptions=("a warm cache",),
    torch="2.9.1",
    wall_s=60.0,
)


def test_each_log_has_its_figures_and_a_folder_of_its_own() -> None:
    rows = list(read_rows())
    assert len(rows) == len({row.folder for row in rows}) == 8
    for row in rows:
        assert row.allocated_mib
        assert all(mib >= max(row.allocated_mib) for mib in row.reserved_mib)
        assert not row.stand_in or (HERE / "stand_ins" / f"{row.stand_in}.py").exists()


@pytest.mark.parametrize(("mib", "gap"), [(99, -1), (100, 0), (101, 0), (102, 0), (107, 5)])
def test_what_is_allocated_lies_between_a_warm_and_a_cold_cache(mib: int, gap: int) -> None:
    assert RESULT.gap(mib) == gap


@pytest.mark.parametrize(
    ("mib", "is_inside"), [(109, False), (110, True), (120, True), (121, False)]
)
def test_a_reserved_figure_is_inside_or_not(mib: int, *, is_inside: bool) -> None:
    assert RESULT.holds(mib) is is_inside
    assert RESULT.width == pytest.approx(10 / 120)


def test_a_run_document_and_the_line_of_the_peak_make_a_result() -> None:
    device = {
        "peak_allocated_low_bytes": 100 * MIB + 1,
        "peak_reserved_low_bytes": 110 * MIB,
        "peak_reserved_high_bytes": 120 * MIB,
    }
    made: list[dict[str, Any]] = [
        {"what": "a warm cache", "low_bytes": 1},
        {"what": "a value was read", "low_bytes": None},
    ]
    basis = {"allocator": {"assumptions": made}}
    document = {"devices": [device], "basis": basis, "torch": "2.9.1+cu128", "wall_s": 60.0}
    assert read_result(document, (102, 120)) == RESULT


def test_the_page_counts_what_is_met_and_names_what_did_not_run() -> None:
    rows = [replace(row, allocated_mib=(101, 110), reserved_mib=(110, 121)) for row in read_rows()]
    page = render(rows, {rows[0].name: RESULT})
    assert "within 4 MiB in 0 of 1 logs, 8 MiB off at most" in page
    assert "1 of 2 figures inside the interval, which is at most 5 % wide in 0 of 1 logs" in page
    assert f"Not run: {', '.join(row.name for row in rows[1:])}." in page


def test_programs_that_are_no_checkout_say_where_they_are_from(tmp_path: Path) -> None:
    assert origin_of(tmp_path) == "The programs are not those of a checkout at that commit."
    (tmp_path / "SOURCES.txt").write_text("Copies of a fork.\n", encoding="utf-8")
    assert origin_of(tmp_path) == "Copies of a fork."
    page = render(list(read_rows()), {}, origin_of(tmp_path))
    assert "**What these rows are.** Copies of a fork.\n\nFigures are whole MiB" in page
    assert "What these rows are" not in render(list(read_rows()), {})


def test_a_program_ends_with_the_line_of_its_peak(capsys: pytest.CaptureFixture[str]) -> None:
    print_until_peak("step:1/3")
    with pytest.raises(SystemExit):
        print_until_peak("peak memory allocated: 1 MiB reserved: 2 MiB")
    assert capsys.readouterr().out.splitlines()[-1].startswith("peak memory allocated")
