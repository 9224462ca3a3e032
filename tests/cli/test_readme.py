"""README.md and SECURITY.md: figures are those of the pages, and what they name is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from benchmarks.documents.blocks import ROOT, read_page
from benchmarks.documents.names import find_problems
from benchmarks.documents.outputs import is_same
from benchmarks.results import page_of, read_rows
from tests.rows import each

from ullage.cli import VERBS

README = read_page(ROOT / "README.md")
ROW = re.compile(
    r"^\| [^|]+ \| (\d+) [^|]+ \| ([\d.]+)(%| MiB) \| ([\d.]+)\3 \| \[[^]]+\]\((.+)\) \|$",
    re.MULTILINE,
)
ROWS = ROW.findall(README.text)
# The rows of a CSV that has one row for each case, and the column with its error.
ERRORS = {
    "accuracy-h200": ("reserved", lambda row: row["table"] and row["workload"]),
    "accuracy-h100": ("reserved", lambda row: row["table"] and row["workload"]),
    "accuracy-logs": ("difference", lambda row: row["difference"]),
    "time": ("error", lambda row: row["error"]),
    "serve-real": ("error", lambda row: row["table"] == "Latencies" and row["load"]),
}
MAIN = "from ullage.cli import main; main()"


def test_the_table_of_accuracy_has_the_pages_of_its_five_tables() -> None:
    pages = [f"docs/results/{page_of(name).name}" for name in ERRORS]
    assert [link.partition("#")[0] for *_, link in ROWS] == pages


@each(("name", "row"), zip(ERRORS, ROWS, strict=True))
def test_the_accuracy_is_that_of_the_rows(name: str, row: tuple[str, ...]) -> None:
    cases, middle, unit, worst, _ = row
    column, is_case = ERRORS[name]
    rows = filter(is_case, read_rows(name))
    errors = [abs(float(re.sub("[,%]", "", row[column]))) for row in rows]
    said = (int(cases), float(middle), float(worst))
    assert said == (len(errors), median(errors), max(errors)), f"{name}.csv, in {unit.strip()}"


def test_the_page_of_trust_leaves_figures_to_the_results() -> None:
    text = (ROOT / "docs" / "reference" / "trust.md").read_text(encoding="utf-8")
    assert re.findall(r"[\d.]+ ?(?:%|MiB|GiB|ms)\b", text) == []


def test_the_table_of_commands_names_every_verb() -> None:
    _, _, table = README.text.partition("## The commands")
    cells = re.findall(r"^\| (`ullage [^|]+) \|", table, re.MULTILINE)
    named = [verb for cell in cells for verb in re.findall(r"`ullage ([\w-]+)`", cell)]
    assert sorted(named) == sorted(VERBS), "README.md, The commands: one row for each verb"


def test_what_the_security_policy_names_is_there() -> None:
    assert find_problems(read_page(ROOT / "SECURITY.md")) == []


@pytest.mark.phantom
@pytest.mark.slow
def test_make_demo_prints_what_the_readme_shows(thin_python: Path, tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^demo:.*\n\t\$\(BIN\)/ullage (.+)$", makefile, re.MULTILINE)
    assert recipe, "Makefile: the recipe of demo is one call of ullage"
    words = shlex.split(recipe[1].replace("$(NEWEST)/bin/python", str(thin_python)))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        cwd=tmp_path, text=True, capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    commands = [command for block in README.blocks for command in block.commands]
    (shown,) = (each.printed for each in commands if each.typed.startswith("make demo"))
    assert is_same(shown, done.stdout.splitlines()), f"README.md, make demo:\n{done.stdout}"
