"""The programs of the wild: the list is whole, and what two runs say is judged as it should be."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.wild.measure import Outcome, Result
from benchmarks.wild.page import render
from benchmarks.wild.program import HERE, NUM_PROGRAMS, PROGRAMS, Origin, read_programs

FITS = Outcome("fits", "fits on rtx-3060", 2**30, 6, None)
FULL = replace(FITS, verdict="out_of_memory", reason="no room for 2 GiB")
FAILED = replace(FITS, verdict="failed", reason="ValueError", cause="ValueError: no (a.py:3)")
EARLY = replace(FITS, verdict="failed", reason="it was stopped", is_stopped_early=True)
RESULT = Result("a program", "1.0", "2.15.0", FITS, FITS)


def test_the_list_has_45_programs_with_all_their_fields() -> None:
    programs = read_programs()
    assert len(programs) == len({program.name for program in programs}) == NUM_PROGRAMS == 45
    for program in programs:
        assert re.fullmatch(r"github\.com/[\w.-]+/[\w.-]+", program.model), program
        assert program.packages and program.run, program


def test_each_file_of_the_list_is_there_and_each_file_is_of_the_list() -> None:
    programs = read_programs()
    files = {program.run[0] for program in programs if program.run[0].endswith(".py")}
    prepared = {program.prepare for program in programs if program.prepare}
    shared = {"tiny.py", "llama.py"}
    assert files | prepared | shared == {path.name for path in PROGRAMS.glob("*.py")}


def test_programs_written_after_a_repository_name_it() -> None:
    for program in read_programs():
        if program.origin is Origin.AFTER:
            text = Path(program.words[0]).read_text(encoding="utf-8")
            assert text.startswith('"""'), program.name


def test_every_package_of_the_list_is_in_a_file_of_requirements() -> None:
    texts = [path.read_text() for path in HERE.glob("requirements*.txt")]
    pinned = set(re.findall(r"^([\w.-]+)==", "\n".join(texts), re.MULTILINE))
    needed = {name for program in read_programs() for name in program.packages}
    assert needed - pinned <= {"torch", "scipy"}  # which come with the others


@pytest.mark.parametrize(
    ("whole", "stopped", "judged"),
    [
        (FITS, FITS, (True, True, False)),
        (FITS, EARLY, (True, True, False)),
        (FULL, FULL, (True, True, False)),
        (FULL, FITS, (True, False, True)),
        (FAILED, FITS, (False, False, True)),
        (FAILED, EARLY, (False, True, False)),
        (FITS, FAILED, (True, False, False)),
    ],
)
def test_a_verdict_with_steps_is_that_of_the_whole_run_or_says_that_it_was_stopped(
    whole: Outcome, stopped: Outcome, judged: tuple[bool, bool, bool]
) -> None:
    result = replace(RESULT, whole=whole, stopped=stopped)
    assert (result.has_run_to_its_end, result.agrees, result.is_wrong_fit) == judged


def test_the_page_has_a_row_for_each_and_a_sentence_for_what_failed() -> None:
    programs = read_programs()
    bad = replace(RESULT, name=programs[1].name, whole=FAILED, stopped=FAILED)
    pairs = [(programs[0], replace(RESULT, name=programs[0].name)), (programs[1], bad)]
    page = render(pairs)
    assert len([line for line in page.splitlines() if re.match(r"\| \d+ \|", line)]) == 2
    assert f"- **{bad.name}**: failed: ValueError: no (a.py:3)." in page
    assert "1 of 2 run to their end" in page


def test_a_word_of_a_command_has_no_space() -> None:
    words = [word for program in read_programs() for word in program.run]
    assert not [word for word in words if " " in word]
