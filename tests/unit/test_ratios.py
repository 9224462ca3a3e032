"""The net for speed: which ratios fail, what is said of them, and that page and table agree."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import ratios
from benchmarks.ratios import PAIRS, Ratio, Table, read_table, render
from benchmarks.results import divide, published
from benchmarks.speed.measure import Command, run_once

ROW = Ratio("a run", "an import", 2.0, 1.9, 2.1, 4.0, 2.0)
TABLE = Table("Made by hand.", 5, 0.5, (ROW, replace(ROW, what="a sweep")))


def risen(share: float) -> Table:
    """The table with its second ratio at a share of what it was."""
    first, second = TABLE.ratios
    return replace(TABLE, ratios=(first, replace(second, ratio=share * second.ratio)))


@pytest.mark.parametrize(("share", "count"), [(0.5, 0), (1.0, 0), (1.09, 0), (1.11, 1), (3, 1)])
def test_a_ratio_fails_that_rose_by_a_tenth(share: float, count: int) -> None:
    assert len(ratios.failures(TABLE, risen(share))) == count


def test_a_failure_names_the_command_its_rise_and_what_to_do() -> None:
    (text,) = ratios.failures(TABLE, risen(1.25))
    assert text.startswith("a sweep takes 2.500 times the processor time of an import, 25% more")
    assert "git bisect run" in text and "--write" in text


def test_a_comparison_shows_both_ratios_and_the_change() -> None:
    line = ratios.compare(TABLE, risen(1.25))[2]
    assert " ".join(line.split()) == "a sweep over an import 2.000x 2.500x +25.0%"


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    row = ratios.ratio("a", "b", {"a": [2.0, 100.0, 4.0], "b": [1.0, 10.0, 4.0]})
    assert row == Ratio("a", "b", ratio=2.0, low=1.0, high=10.0, what_s=4.0, over_s=4.0)


def test_the_exit_code_says_whether_a_ratio_rose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = read_table()
    higher = replace(table, ratios=tuple(replace(r, ratio=1.2 * r.ratio) for r in table.ratios))
    monkeypatch.setattr(sys, "argv", ["ratios"])
    for measured, code in ((table, 0), (higher, 1)):
        monkeypatch.setattr(ratios, "measure", lambda python, found=measured: found)
        assert ratios.main() == code
        assert capsys.readouterr().out.count("commit the new table") == code * len(PAIRS)


def test_a_table_of_other_rows_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["ratios"])
    monkeypatch.setattr(ratios, "read_table", lambda: TABLE)
    monkeypatch.setattr(ratios, "measure", lambda _: pytest.fail("it measures"))
    with pytest.raises(SystemExit, match="--write"):
        ratios.main()


def test_the_committed_table_has_the_pairs_of_today_and_its_page_shows_it() -> None:
    table = read_table()
    assert [(row.what, row.over) for row in table.ratios] == list(PAIRS)
    shown = divide("ratios", render(table))
    assert published("ratios") == shown, "python -m benchmarks.ratios --write"


def test_processor_seconds_are_those_of_a_process_and_its_children(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n{burn}"
    assert run_once(Command((sys.executable, "-c", parent), {}), tmp_path).processor_s >= 0.4
    sleeping = run_once(Command((sys.executable, "-c", "import time; time.sleep(1)"), {}), tmp_path)
    assert sleeping.processor_s < 0.9 < sleeping.wall_s
