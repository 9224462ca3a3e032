"""Files that no honest hand wrote: each is refused in a sentence, with exit code 2, and what they
hold reaches no terminal as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ullage import cli as main
from ullage.act.techniques.plan import Plan
from ullage.cli import run_cli
from ullage.ground.errors import SpecError
from ullage.ground.files import check_writable, write_text
from ullage.ground.printable import printable, printable_lines
from ullage.players.phantom.program import resolve_program
from ullage.verbs.check.gate.lock import LOCK_NAME, parse_lock
from ullage.verbs.check.gate.scenario import Case
from ullage.verbs.command_line.crash import crash_report

SCENARIO = '[scenario.train]\ncommand = "train.py"\ngpu = "l4"\n'
NESTED = 5000
HOME = "/" + "home"
Refused = Callable[..., str]


@contextmanager
def run_nothing(_cases: Sequence[Case], _settings: object) -> Iterator[list[Any]]:
    """In the place of what runs the cases."""
    yield []


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """`refused(*words)`: what `ullage WORDS` says as it exits with 2, in one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ullage.verbs.check.function.run_cases", run_nothing)

    def run(*words: str) -> str:
        code = run_cli(list(words))
        lines = capsys.readouterr().err.splitlines(keepends=True)
        said = "".join(line for line in lines if not line.startswith("ullage: configuration: "))
        assert code == 2, said
        assert said.startswith("ullage: ") and said.count("\n") == 1
        return said

    return run


CONFIGURATIONS = {
    "nested lists": (f"inputs = {'[' * NESTED}", "nests values more than 100 deep"),
    "nested lists that end": (f"inputs = {'[' * 150}{']' * 150}", "more than 100 deep"),
    "a long number": (f"steps = {'9' * 5000}", "a number that no 64 bits hold"),
    "a large number": (
        "steps = 9223372036854775808",
        "ullage.toml:LINE: scenario.train.steps holds a number that no 64 bits hold",
    ),
    "not a number": (
        "steps = nan",
        "ullage.toml:LINE: scenario.train.steps holds nan, not a finite number",
    ),
    "less than any number": (
        "budget = { growth = -inf }",
        "ullage.toml:LINE: scenario.train.budget.growth holds -inf, not a finite number",
    ),
    "not a number in a list": (
        "matrix = { batch = [8, nan] }",
        "ullage.toml:LINE: scenario.train.matrix.batch[1] holds nan, not a finite number",
    ),
    "too many cases": (
        'env = { A = "{a}{b}{c}{d}" }\nmatrix = { '
        + ", ".join(f"{name} = {[*range(100)]}" for name in "abcd")
        + " }",
        "matrix: that is 100,000,000 runs; expected 4,096 or fewer; give fewer values",
    ),
    "too many GPUs": (
        f"gpus = {2**63 - 1}",
        "gpus: no machine has 9223372036854775807 GPUs; expected 1",
    ),
    "a pattern of all files": ('inputs = ["/**/*"]', "not a pattern of files below"),
    "no pattern": ('inputs = [""]', "not a pattern of files below"),
    "a pattern that none is": ('inputs = ["a**b/**c"]', ""),
    "a variable with =": ('env = { "A=B" = "1" }', "expected a name without = and NUL"),
    "a variable with NUL": ('env = { "A\\u0000" = "1" }', "expected a name without = and NUL"),
    "a variable without a name": ('env = { "" = "1" }', "expected a name without = and NUL"),
    "a value with NUL": ('env = { A = "1\\u0000" }', "holds the character NUL"),
    "a word with NUL": ('assume = ["\\u0000"]', "holds the character NUL"),
    "a text beyond all": (f'directory = "{"d" * 70000}"', "a text of 70000 characters; expected"),
    "a long directory": (f'directory = "{"d" * 5000}"', "there is no such directory"),
    "nobody's home": ('directory = "~nobody-of-this-name/x"', "there is no such directory"),
    "a size beyond all": (f'memory = "{"9" * 5000}GiB"', "more than the 8 EiB that 64 bits hold"),
    "a timeout of nothing": ("timeout = 0", "expected a number above 0"),
    "a timeout of words": ('timeout = "soon"', "expected a time of up to 30 days"),
    "a timeout beyond all": ('timeout = "9999999h"', "expected a time of up to 30 days"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_hostile_configuration_is_refused(refused: Refused, name: str) -> None:
    line, message = CONFIGURATIONS[name]
    if name == "a pattern that none is":
        pytest.skip("newer versions of Python read it") if sys.version_info >= (3, 13) else None
    Path("ullage.toml").write_text(SCENARIO + line + "\n")
    place = str(SCENARIO.count("\n") + 1)
    assert message.replace("LINE", place) in refused("check")


PROJECTS = {
    "not UTF-8": (b'[tool.ullage]\nx = "\xff"\n', "it is not UTF-8"),
    "a number": (b"[tool]\nullage = 5\n", "tool.ullage is 5; expected a table"),
    "a number for all tools": (b"tool = 5 # tool.ullage\n", "there is no ullage.toml"),
    "nested": (b"[tool.ullage]\nx = " + b"[" * NESTED, "nests values more than 100 deep"),
    "another's": (b"# nothing of tool.ullage\n\xff", "it is not UTF-8"),
}


@pytest.mark.parametrize("name", PROJECTS)
def test_a_hostile_project_is_refused(refused: Refused, name: str) -> None:
    content, message = PROJECTS[name]
    Path("pyproject.toml").write_bytes(content)
    assert message in refused("check")


ENTRY = """version = 1

[scenario.train]
basis = "exact"
peak_requested_bytes = 1
peak_allocated_bytes = 1
peak_reserved_bytes = 1
peak_used_bytes = 1
"""
LOCKS = {
    "nested": (f"version = {'[' * NESTED}", "nests values more than 100 deep"),
    "a long number": (f"version = {'1' * 5000}", "a number that no 64 bits hold"),
    "less than nothing": (
        ENTRY.replace("peak_reserved_bytes = 1", "peak_reserved_bytes = -5"),
        "scenario.train.peak_reserved_bytes is -5; expected 0 or more",
    ),
    "an owner of less than nothing": (
        f"{ENTRY}\n[scenario.train.categories]\nactivation = -5\n",
        "scenario.train.categories.activation is -5; expected 0 or more",
    ),
}


@pytest.mark.parametrize("name", LOCKS)
def test_a_hostile_lock_is_refused(refused: Refused, name: str) -> None:
    content, message = LOCKS[name]
    Path("ullage.toml").write_text(SCENARIO)
    Path(LOCK_NAME).write_text(content)
    assert message in refused("check")


def test_the_lock_of_those_tests_is_one_without_the_fault() -> None:
    assert parse_lock(ENTRY).scenarios["train"].peaks.used_bytes == 1


PLAN = {
    "schema": "ullage.plan/1",
    "made_for": {"torch": "2.15.0", "model": "GPT", "num_parameters": 1},
    "actions": [],
    "foreseen": None,
}
PLANS = {
    "nested": ("[" * NESTED + "]" * NESTED, "nests values more than 100 deep"),
    "nested in a field": (
        json.dumps(PLAN)[:-1] + ', "x": ' + "[" * NESTED + "]" * NESTED + "}",
        "more than 100 deep",
    ),
    "a long number": (json.dumps(PLAN).replace("1}", "9" * 5000 + "}"), "no 64 bits hold"),
    "not a number": (json.dumps(PLAN).replace("1}", "NaN}"), "NaN, which is not a number of JSON"),
    "not UTF-8": ("\udcff", "cannot be read"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_hostile_plan_is_refused(refused: Refused, name: str) -> None:
    content, message = PLANS[name]
    Path("plan.json").write_bytes(content.encode(errors="surrogateescape"))
    assert message in refused("exec", "--plan", "plan.json", "--", "train.py")


def test_the_plan_of_those_tests_is_one_without_the_fault() -> None:
    assert Plan.parse(json.dumps(PLAN)).made_for.num_parameters == 1


NAMES = {
    "long": "n" * 256,
    "long in bytes": "ü" * 128,
    "long in its path": "/".join(["d" * 200] * 30) + "/x",
    "with NUL": "a\0b",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match=r"bytes|NUL"):
        check_writable(tmp_path / NAMES[name], force=False)


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127])
def test_the_longest_name_is_written_and_so_is_the_second_of_it(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        write_text("x", tmp_path / name, force=False)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_is_told_with_the_file(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full.html").symlink_to("/dev/full")
    said = refused("estimate", "llama-3.1-8b", "--length", "9", "-o", str(tmp_path / "full.html"))
    assert said == f"ullage: '{tmp_path}/full.html' could not be written: No space left on device\n"


def test_a_defect_is_told_in_a_line_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError(f"\x1b[31mby zero at {HOME}/somebody/secret/train.py")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ullage.verbs.check.function.check.act", fail)
    assert run_cli(["check"]) == main.CRASHED == 3
    said = capsys.readouterr().err
    assert said.startswith("ullage: a defect of ullage itself, ZeroDivisionError: \\x1b[31mby zero")
    assert said.count("\n") == 1
    (report,) = tmp_path.iterdir()
    text = report.read_text()
    assert report.name in said
    assert "Traceback" in text and "in check_command" in text and "arguments: check" in text
    assert HOME not in text and "somebody" not in text and "\x1b" not in text
    assert str(Path(main.__file__).parents[1]) not in text


def test_a_report_of_a_defect_has_no_argument_of_the_programs() -> None:
    words = ("exec", "--plan", "http://me:hunter2@host/plan", "--", "train.py", "--key", "hunter2")
    text = crash_report(ValueError("odd"), words)
    assert "arguments: exec --plan removed -- (3 more)" in text
    assert "hunter2" not in text


def test_what_is_not_for_display_is_escaped() -> None:
    text = "a\x1b[31m\r\n\tb\x9b\u202e\u2028\udcff\ud800\x7fß中🙂"
    assert printable(text) == (
        "a\\x1b[31m\\r\\n\\tb\\x9b\\u202e\\u2028\\xff\\ud800\\x7fß中🙂"
    )  # fmt: skip
    assert printable_lines("a\nb\x07") == "a\nb\\x07"
    assert printable(printable(text)) == printable(text)


def test_a_command_that_no_file_can_be_called_like_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="give a Python file"):
        resolve_program(["c" * 5000], sys.executable, tmp_path)
