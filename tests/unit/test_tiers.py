"""The tiers of the tests, their budget, and the line of the last whole run."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import tiers, whole
from tests.meter import processor_s

ROOT = Path(__file__).parents[2]
HOOKS = (
    "from tests.tiers import pytest_addoption, pytest_collection_modifyitems, pytest_configure, "
    "pytest_runtest_makereport, pytest_runtest_protocol\n"
    "from tests import tiers\nfrom pathlib import Path\n"
    "tiers.SECONDS = Path(__file__).with_name('seconds.csv')\n"
)
CASES = """
import pytest

def test_plain(): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.slow(but=("a",))
@pytest.mark.parametrize("name", ["a", "b"])
def test_of_a_list(name): pass

@pytest.mark.nightly
@pytest.mark.slow
def test_nightly(): pass
"""


def run_pytest(
    directory: Path, *options: str, cases: str = CASES
) -> subprocess.CompletedProcess[str]:
    """pytest on a folder of its own with the hooks of tests/conftest.py."""
    (directory / "conftest.py").write_text(HOOKS)
    (directory / "test_cases.py").write_text(cases)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  nightly\n")
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:ullage", *options],
        cwd=directory, env=kept | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def cases_of(directory: Path, tier: str) -> set[str]:
    """What runs in a tier."""
    outcomes = directory / "outcomes.csv"
    run_pytest(directory, "--tier", tier, "--outcomes", str(outcomes))
    return {line.partition("::")[2] for line in outcomes.read_text().splitlines()}


def test_a_case_runs_in_its_tier(tmp_path: Path) -> None:
    by_day = {"test_plain", "test_of_a_list[a]"}
    assert cases_of(tmp_path, "test") == by_day
    assert cases_of(tmp_path, "all") == by_day | {"test_slow", "test_of_a_list[b]"}
    assert cases_of(tmp_path, "nightly") == {"test_nightly"}


def test_a_case_without_an_entry_fails(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--seconds", "check")
    assert done.returncode == 1
    assert "no entry in tests/seconds.csv: test_cases.py::test_plain" in done.stdout
    run_pytest(tmp_path, "--tier", "all", "--seconds", "write")
    assert run_pytest(tmp_path, "--seconds", "check").returncode == 0


def test_an_entry_above_the_budget_fails(tmp_path: Path) -> None:
    run_pytest(tmp_path, "--tier", "all", "--seconds", "write")
    with (tmp_path / "seconds.csv").open("w", newline="") as file:
        cases = ("test_plain", "test_of_a_list[a]")
        csv.writer(file).writerows(
            (tiers.CASE_S * tiers.NOISE + 1, f"test_cases.py::{name}") for name in cases
        )
    done = run_pytest(tmp_path, "--seconds", "check")
    assert done.returncode == 1
    assert "a case may take 5 s of processor time, and test_cases.py::test_plain" in done.stdout


def test_entries_of_cases_that_are_gone_go(tmp_path: Path) -> None:
    run_pytest(tmp_path, "--tier", "all", "--seconds", "write")
    run_pytest(tmp_path, "--tier", "all", "--seconds", "write", cases="def test_new(): pass\n")
    assert (tmp_path / "seconds.csv").read_text().count("\n") == 1


def test_a_failure_is_cut_to_a_screen(tmp_path: Path) -> None:
    cases = "def test_long():\n    for n in range(99): print('line', n)\n    assert not 'found'\n"
    done = run_pytest(tmp_path, cases=cases)
    report = done.stdout[done.stdout.index("= FAILURES") :]
    assert "assert not 'found'" in report and "line 98" in report
    assert report.count("\n") < 40
    assert "line 50" in run_pytest(tmp_path, "-v", cases=cases).stdout


def test_the_meter_counts_what_was_started() -> None:
    before = processor_s()
    code = "import time\nwhile time.process_time() < 0.3: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as running:
        running.wait()
    assert round(processor_s() - before, 2) >= 0.29


def test_the_digest_changes_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "ROOT", tmp_path)
    for tree in ("src", "tests"):
        (tmp_path / tree).mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    first = whole.digest()
    (tmp_path / "tests" / "seconds.csv").write_text("1,a\n")
    (tmp_path / "src" / "__pycache__").mkdir()
    (tmp_path / "src" / "__pycache__" / "a.pyc").write_text("1")
    assert whole.digest() == first
    (tmp_path / "src" / "a.py").write_text("2")
    assert whole.digest() != first


def test_a_skipped_case_needs_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "skipped.toml"
    listed.write_text('[[skipped]]\ncase = "tests/a.py::test_b"\nwhy = "needs a GPU"\n')
    monkeypatch.setattr(whole, "SKIPPED", listed)
    assert whole.unexplained(["tests/a.py::test_b[1]", "tests/a.py::test_c"]) == [
        "tests/a.py::test_c"
    ]
