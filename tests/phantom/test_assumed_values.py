"""Values that no kernel computed agree, however a program reads them (docs/reference/values.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

BARE = (("ULLAGE_RECORD", "0"),)
ZEROS = ("--assume", "values=zeros")
EXPECTED = {
    "categorical": True,
    "normal": True,
    "bernoulli": [0.0, 1.0],
    "beta": True,
    "multivariate_normal": [3],
    "predicates": [[True] * 9, [False] * 3],
    "segment_anything": [64, 64, 64],
    "best_accuracy": True,
    "scaler": [[65536.0] * 5, True],
    "indices": [True, True],
    "draws": [[True] * 6, True, False, False],
    "beam_search": [2, 2, 7],
    "numbers": [True, True, True],
    "known_numbers": [1.0, 0.0, 0.0, 0.75],
}


@pytest.mark.parametrize("case", EXPECTED)
def test_a_program_that_reads_unknown_values_goes_on(run_program: RunProgram, case: str) -> None:
    outcome = run_program("assumed_values.py")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed[case] == EXPECTED[case]


def test_a_sample_of_a_simplex_is_one(run_program: RunProgram) -> None:
    sums = run_program("assumed_values.py").printed["dirichlet"]
    assert sums == pytest.approx([1.0] * 16, abs=1e-6)


@pytest.mark.parametrize("options", [(), ZEROS], ids=["plausible", "zeros"])
def test_all_ways_of_reading_a_mask_agree(
    run_program: RunProgram, options: tuple[str, ...]
) -> None:
    results = run_program("assumed_values.py", options=options).printed["masks"]
    assert len(results) == 6
    assert all(len(set(counts)) == 1 for counts in results), results
    assert len({counts[0] for counts in results}) == 2, "some are found, some are not"


def test_zeros_agree_with_their_predicates(run_program: RunProgram) -> None:
    printed = run_program("assumed_values.py", options=ZEROS).printed
    assert printed["predicates"] == EXPECTED["predicates"]
    assert printed["segment_anything"] == EXPECTED["segment_anything"]
    assert printed["numbers"].startswith("ZeroDivisionError")


def test_the_basis_says_how_reads_were_answered(run_program: RunProgram) -> None:
    for options, words in (((), "host read, answered plausibly"),
                           (ZEROS, "host read, answered as zeros")):  # fmt: skip
        reads = run_program("assumed_values.py", options=options).reads
        kinds = {what for entries in reads.values() for what in entries if "host read" in what}
        assert kinds == {words}


@pytest.mark.slow
def test_the_follower_never_raises_into_the_program(run_program: RunProgram) -> None:
    watched = run_program("exotic_tensors.py")
    assert watched.exit_code == 0, watched.stderr
    printed, bare = watched.printed, run_program("exotic_tensors.py", env=BARE).printed
    assert list(printed.values()).count("fine") > 400
    worse = {name: result for name, result in printed.items() if result not in ("fine", bare[name])}
    assert not worse


@pytest.mark.parametrize("case", ["at", "later"])
def test_a_failure_that_follows_from_a_read_names_it_and_the_switch(
    run_program: RunProgram, case: str
) -> None:
    outcome = run_program("fails_on_assumed.py", case)
    assert outcome.exit_code == 3
    (warning,) = [text for text in outcome.document["warnings"] if "no kernel computed" in text]
    assert warning.startswith("fails_on_assumed.py:")
    assert "(answered as 0.2601)" in warning
    assert "--assume values=zeros" in warning


def test_a_failure_of_another_kind_names_no_read(run_program: RunProgram) -> None:
    outcome = run_program("fails_on_assumed.py", "elsewhere")
    assert outcome.exit_code == 3
    assert not [text for text in outcome.document["warnings"] if "no kernel computed" in text]
