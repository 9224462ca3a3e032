"""Mutants: what the operators make of a source, which are drawn, and how they are tried."""

from __future__ import annotations

import ast
import csv
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.net.__main__ import LINES, TABLE
from benchmarks.net.choice import (
    Mutant,
    draw_edit,
    draw_mends,
    find_packages,
    read_mutants,
    write_mutants,
)
from benchmarks.net.lines import inner_lines
from benchmarks.net.operators import apply_edit, edits_of
from benchmarks.net.page import render
from benchmarks.net.trial import Outcome, make_clone, nearest_tests, try_tier
from benchmarks.results import divide, published

EDIT = Mutant("edit 3", "src/ullage/ground/units.py", 12, "n = 1", "n = 2")
MEND = Mutant("mend 1a23f945", "", 0, "a request was not tried again", "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("n = 7", {"n = 8"}),
        ("n = -7", {"n = -8"}),
        ("n = 0.25", {"n = 0.5"}),
        ("n = 0.0", {"n = 1.0"}),
        ("n = True", {"n = False"}),
        ("n = a < b", {"n = a <= b"}),
        ("n = a >= b", {"n = a > b"}),
        ("n = (a) == (b)", {"n = (a) != (b)"}),
        ("n = a + b - c", {"n = a - b - c", "n = a + b + c"}),
        ("if a: b", {"if not (a): b"}),
        ("while a in b: c", {"while not (a in b): c"}),
        ("n.a = b", {"pass"}),
        ("n[a] = f(1)", {"pass", "n[a] = f(2)"}),
        ("n += 1", {"pass", "n += 2"}),
        ("f()", {"pass"}),
        ("raise E(1)", {"pass"}),
        ("return_ = 'µ' * 2", {"return_ = 'µ' * 3"}),
    ],
)
def test_an_operator_changes_one_thing_of_a_line(line: str, expected: set[str]) -> None:
    assert {edit.after for edit in edits_of(f"def g():\n    {line}\n")} == expected


@pytest.mark.parametrize(
    "text",
    [
        '"""Docstring of 7."""',
        "'help of 7'",
        "n: Literal[7]",
        "def f(n: Literal[7]) -> Literal[7]: ...",
        "@option(default=7)\ndef f(): ...",
        "@dataclass(frozen=True)\nclass C: ...",
        "__all__ = ['a'] + ['b']",
        "if TYPE_CHECKING:\n    n = 7",
        "import a",
        "a = b",
        "n = 'a' + b",
        "n = f'{7}'",
        "n = a is b",
        "f(\n    a,\n)",
    ],
)
def test_what_declares_and_texts_are_left_alone(text: str) -> None:
    assert edits_of(text) == []


def test_every_fault_of_a_long_module_is_a_module_with_one_other_line() -> None:
    text = Path(ast.__file__).read_text(encoding="utf-8")
    edits = edits_of(text)
    assert len({edit.operator for edit in edits}) == 5
    for edit in edits[::20]:
        changed = apply_edit(text, edit.line, edit.before, edit.after)
        assert changed is not None
        ast.parse(changed)
        pairs = zip(text.split("\n"), changed.split("\n"), strict=True)
        assert [number for number, (old, new) in enumerate(pairs, 1) if old != new] == [edit.line]


def test_a_line_that_has_moved_is_found_and_one_that_is_gone_is_not() -> None:
    text = "a = 1\nb = 2\nif c:\n    a = 1\n"
    assert apply_edit(text, 1, "a = 1", "a = 2") == "a = 2\nb = 2\nif c:\n    a = 1\n"
    assert apply_edit(text, 9, "a = 1", "a = 2") == "a = 1\nb = 2\nif c:\n    a = 2\n"
    assert apply_edit(text, 1, "a = 3", "a = 4") is None


def test_edits_are_spread_by_size_over_lines_that_tests_execute() -> None:
    sources = {
        "large/a.py": "n = 1\n" * 300,
        "small/b.py": "n = 1\n" * 100,
        "small/tables/c.py": "n = 1\n" * 100,
        "idle/d.py": "n = 1\n" * 300,
    }
    packages = find_packages(sources, {file: {1, 7} for file in sources if "d.py" not in file})
    edits = [draw_edit(packages, number) for number in range(1, 101)]
    assert edits == [draw_edit(packages, number) for number in range(1, 101)]
    assert {edit.line for edit in edits} == {1, 7}
    assert Counter(edit.file for edit in edits) == {
        "src/ullage/large/a.py": 60,
        "src/ullage/small/b.py": 40,  # its table takes room, and has no edits
    }
    assert 10 <= sum("large" in edit.file for edit in edits[:20]) <= 14


def test_mends_are_commits_in_an_order_that_the_seed_draws() -> None:
    mends = list(draw_mends())
    assert mends == list(draw_mends())
    assert len(mends) == len({mend.name for mend in mends}) >= 40
    assert all(mend.is_mend and len(mend.commit) == 8 and mend.before for mend in mends)
    assert [mend.name for mend in mends] != sorted(mend.name for mend in mends)


def test_a_table_has_a_line_for_each_mutant(tmp_path: Path) -> None:
    mutants = [EDIT, replace(MEND, tier="all", case="tests/a.py::b[x, y]", seconds=7)]
    write_mutants(tmp_path / "net.csv", mutants)
    assert read_mutants(tmp_path / "net.csv") == mutants
    assert len((tmp_path / "net.csv").read_text().splitlines()) == 3
    assert read_mutants(tmp_path / "none.csv") == []


def test_the_nearest_tests_are_those_that_name_the_module() -> None:
    tests = {
        "tests/unit/clock/test_step.py": "from ullage.clock.step import measure_step",
        "tests/unit/clock/test_host.py": "from ullage.clock.host import HostCosts",
        "tests/cli/test_run.py": "ullage run",
        "tests/phantom/test_time.py": "from ullage.clock.step import measure_step",
        "tests/phantom/test_clocks.py": "ullage run",
    }
    step = ["tests/unit/clock/test_step.py", "tests/phantom/test_time.py"]
    assert nearest_tests(["src/ullage/clock/step.py"], tests) == [
        *step, "tests/unit/clock/test_host.py",
    ]  # fmt: skip
    came_with = ["src/ullage/clock/step.py", "tests/phantom/test_clocks.py"]
    assert nearest_tests(came_with, tests)[:2] == [step[0], "tests/phantom/test_clocks.py"]


class Runs:
    """A clone whose calls of pytest end as listed."""

    def __init__(self, *cases: str) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._cases = iter(cases)

    def run(self, *words: str, limit_s: float) -> Outcome:
        self.calls.append(words)
        return Outcome(next(self._cases), 1.0)


def test_the_nearest_files_run_first_and_then_the_whole_tier() -> None:
    runs = Runs("", "tests/b.py::c", "tests/b.py::c")
    assert try_tier(runs, "test", ["tests/a.py"], 60.0) == Outcome("tests/b.py::c", 2.0)
    assert runs.calls == [
        ("test", "-x", "tests/a.py"), ("test", "-x"), ("test", "tests/b.py::c"),
    ]  # fmt: skip


def test_a_failure_that_does_not_come_again_is_one_of_chance() -> None:
    assert try_tier(Runs("tests/b.py::c", "", ""), "test", [], 60.0).case == ""
    runs = Runs("tests/b.py::c", "", "tests/b.py::d")
    assert try_tier(runs, "test", [], 60.0).case == "tests/b.py::d"


def test_mutants_are_tried_in_a_clone_and_leave_the_checkout_as_it_is(tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    (checkout / "src").mkdir(parents=True)
    (checkout / "tests").mkdir()
    (checkout / "tests" / "test_a.py").write_text("")
    (checkout / "Makefile").write_text(".venv/done phantom:\n\t@true\n")

    def commit(text: str) -> str:
        (checkout / "src" / "a.py").write_text(text)
        for words in (
            ("init", "--quiet"), ("add", "."),
            ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "A change"),
        ):  # fmt: skip
            subprocess.run(["git", *words], cwd=checkout, check=True)
        head = ["git", "rev-parse", "--short=8", "HEAD"]
        return subprocess.check_output(head, cwd=checkout, text=True).strip()

    commit("n = 1\n")
    mend = replace(MEND, name=f"mend {commit('n = 2' + chr(10))}")
    clone = make_clone(checkout, tmp_path)
    text = clone.root / "src" / "a.py"
    assert clone.has_mend(mend.commit)
    clone.apply(mend)
    assert text.read_text() == "n = 1\n"
    clone.apply(replace(EDIT, file="src/a.py", before="n = 2", after="n = 3"))
    assert text.read_text() == "n = 3\n"
    with pytest.raises(SystemExit, match=r"edit 3: src/a\.py has changed since"):
        clone.apply(replace(EDIT, file="src/a.py", before="n = 7"))
    assert (checkout / "src" / "a.py").read_text() == "n = 2\n"
    commit("n = 4\n")
    again = make_clone(checkout, tmp_path)
    assert text.read_text() == "n = 4\n" and again.tree != clone.tree


def test_the_lines_within_functions_are_those_that_a_call_executes() -> None:
    text = (
        'N = 1\nclass C:\n    def f(self):\n        """Says."""\n        a = 1\n        return (\n'
    )
    assert sorted(inner_lines(f"{text}            a\n        )\n    def g(self): ...\n")) == [
        5,
        6,
        7,
        8,
    ]


def test_the_page_names_what_only_the_whole_suite_caught() -> None:
    caught = replace(EDIT, name="edit 1", tier="test", case="tests/a.py::b", seconds=9)
    missed = replace(EDIT, tier="all", case="tests/c.py::d", seconds=90, added="tests/e.py")
    page = render([caught, caught, missed, *[replace(MEND, tier="none")] * 3, EDIT])
    assert "| all | 6 | 2 | 1 | 3 |" in page
    assert "that wait for it, `make test` catches 2 (67 %)" in page
    assert (
        "- **edit 3**: src/ullage/ground/units.py:12, `n = 1` became `n = 2`. Caught by "
        "`tests/c.py::d`. Added: tests/e.py." in page
    )
    assert "- **mend 1a23f945**: a request was not tried again. Caught by nothing." in page


def test_the_committed_page_is_that_of_the_table() -> None:
    today, there = (
        [line for line in section.splitlines() if not line.startswith("Made by")]
        for section, _ in (divide("net-sum", render(read_mutants(TABLE))), published("net-sum"))
    )
    assert today == there, "python -m benchmarks.net --page"


def test_each_module_of_some_length_has_a_line_that_make_test_executes() -> None:
    rows = csv.DictReader(LINES.read_text(encoding="utf-8").splitlines()) if LINES.exists() else ()
    assert [row["module"] for row in rows if row["num_executed"] == "0"] == []
