"""Expert parallel: how many tokens travel is what the assumption about the router says, worked out
by hand.

64 experts, two for each token. Worst case, every token of every rank goes to the first two experts,
which rank 0 of 8 holds; balanced, each of the 8 experts of a rank gets its share of all tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

WORLD_SIZE, NUM_EXPERTS, TOP_K, WIDTH = 8, 64, 2, 256
# As many flags, one for each token and expert, are no longer followed one by one.
MANY = 4096


def play(run_program: RunProgram, rank: int, *program: str, assumed: str) -> Any:
    """One rank of eight."""
    options = ("--world-size", str(WORLD_SIZE), "--rank", str(rank), "--assume", assumed)
    outcome = run_program(f"distributed/{program[0]}", *program[1:], options=options)
    assert outcome.exit_code == 0, outcome.stderr[-2000:]
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("expert_parallel.py", "--tokens"),
        pytest.param("expert_parallel_dtensor.py", "", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("tokens", [1024, MANY])
def test_a_rank_gets_the_tokens_of_its_experts(
    run_program: RunProgram, program: str, words: str, tokens: int
) -> None:
    arguments = [*words.split(), str(tokens)]
    worst = play(run_program, 0, program, *arguments, assumed="experts=worst")
    assert worst.printed["arrived"] == [WORLD_SIZE * tokens * TOP_K] * 3
    balanced = play(run_program, 0, program, *arguments, assumed="experts=balanced")
    assert balanced.printed["arrived"] == [tokens * TOP_K] * 3
    # A token is at least as large as it is on arrival.
    more = WORLD_SIZE * tokens * TOP_K - tokens * TOP_K
    assert worst.printed["peak"] - balanced.printed["peak"] >= more * WIDTH * 4


@pytest.mark.nightly
def test_a_rank_whose_experts_nobody_chooses_gets_no_token(run_program: RunProgram) -> None:
    outcome = play(run_program, 3, "expert_parallel.py", assumed="experts=worst")
    assert outcome.printed["arrived"] == [0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1024, pytest.param(MANY, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("assumed", ["worst", "balanced"])
def test_an_expert_takes_no_more_than_its_capacity(
    run_program: RunProgram, tokens: int, assumed: str
) -> None:
    arguments = ("expert_parallel.py", "--tokens", str(tokens), "--capacity", "1.25")
    outcome = play(run_program, 0, *arguments, assumed=f"experts={assumed}")
    share = tokens * TOP_K // NUM_EXPERTS
    here = NUM_EXPERTS // WORLD_SIZE
    by_hand = {"worst": TOP_K * (share * 5 // 4), "balanced": here * share}
    assert outcome.printed["arrived"] == [WORLD_SIZE * by_hand[assumed]] * 3


@pytest.mark.slow
def test_the_basis_says_what_was_assumed_of_the_router(run_program: RunProgram) -> None:
    words = ("expert_parallel.py", "--tokens", str(MANY))
    outcome = play(run_program, 0, *words, assumed="experts=balanced")
    listed = [what for entries in outcome.reads.values() for what in entries]
    assert any("experts that a router chooses: balanced" in what for what in listed), listed
