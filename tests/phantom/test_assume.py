"""What is assumed of values that nobody computed: as it was asked for, listed, and never small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

OFF = ("[run] values = false",)
BALANCED = ("--assume", "experts=balanced")


@pytest.mark.parametrize("values", [(), OFF], ids=["", "off"])
@pytest.mark.parametrize(
    ("assumed", "fraction"), [((), 1.0), (("--assume", "nonzero=half"), 0.5),
                              (("--assume", "nonzero=0.1"), 0.1)],
)  # fmt: skip
def test_what_is_found_is_the_part_that_was_asked_for(
    run_program: RunProgram, values: tuple[str, ...], assumed: tuple[str, ...], fraction: float
) -> None:
    outcome = run_program("finds.py", options=(*values, *assumed))
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed == [30_000 * fraction] * 3 + [1000 * fraction] * 3
    listed = [what for entries in outcome.reads.values() for what in entries]
    words = "worst case" if fraction == 1 else f"{fraction:g} of the worst case"
    assert len([what for what in listed if what.endswith(f": {words}")]) == 6


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [512, 8192], ids=["followed", "too many to follow"])
def test_experts_get_the_tokens_that_were_asked_for(run_program: RunProgram, tokens: int) -> None:
    worst = run_program("experts.py", str(tokens))
    balanced = run_program("experts.py", str(tokens), options=BALANCED)
    assert (worst.exit_code, balanced.exit_code) == (0, 0), worst.stderr
    # What is kept for backward is as much however it is spread.
    assert worst.printed["peak"] == pytest.approx(balanced.printed["peak"], rel=0.35)
    for outcome, words in ((worst, "all tokens to the same"), (balanced, "as many tokens to each")):
        listed = [what for entries in outcome.reads.values() for what in entries]
        assert any("experts" in what and words in what for what in listed), listed


@pytest.mark.slow
def test_without_values_each_expert_gets_all_tokens_and_twice(run_program: RunProgram) -> None:
    followed, off = run_program("experts.py", "512"), run_program("experts.py", "512", options=OFF)
    assert off.exit_code == 0, off.stderr
    assert off.printed["peak"] > 1.5 * followed.printed["peak"]


def test_a_loop_that_waits_for_a_value_is_named_with_its_line(run_program: RunProgram) -> None:
    outcome = run_program("waits.py", "10001")
    assert outcome.exit_code == 0, outcome.stderr
    (warning,) = [text for text in outcome.document["warnings"] if "in a row" in text]
    assert warning.startswith("waits.py:9 in <module> has read 10,000 times")
    assert f"ullage: {warning}" in outcome.stderr, "while it waits, not only at the end"


def test_a_loop_that_ends_soon_is_not_warned_of(run_program: RunProgram) -> None:
    outcome = run_program("waits.py", "100")
    assert not [text for text in outcome.document["warnings"] if "in a row" in text]


def test_only_a_router_chooses_experts(run_program: RunProgram) -> None:
    outcome = run_program("topk.py")
    assert outcome.exit_code == 0, outcome.stderr
    listed = [what for entries in outcome.reads.values() for what in entries]
    assert not [what for what in listed if "experts" in what]
