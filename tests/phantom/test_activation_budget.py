"""The count of recomputation of docs/results/plans.md, on a chain with a known one.

Forward has two products a block, backward four. What backward needs of a block is its input and
what its tanh gave.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import SOURCE
from tests.phantom.conftest import RunProgram

pytestmark = pytest.mark.phantom

COUNTED = str(Path(__file__).parents[2] / "benchmarks" / "plans" / "programs")
BLOCKS = 4
AS_IT_IS = 6 * BLOCKS
# How the chain is compiled, the budget, what a plan saves: how many products are computed again.
CHAINS = {
    ("blocks", 1, None): 0,
    ("blocks", 0, None): BLOCKS,  # the first product of each
    # All of them but the last, whose result nobody needs.
    ("whole", 1, None): 0,
    ("whole", 0, None): 2 * BLOCKS - 1,
    ("blocks", 1, "matmul"): 0,
    ("blocks", 1, "1"): BLOCKS,
    ("blocks", 1, "attention"): BLOCKS,
    ("blocks", 1, "0"): 0,
}
NOT_THERE = (("blocks", 1, "0,2"), ("nothing", 1, "0,2"))
# How often attention without dropout is computed.
ATTENTION = {"attention": 1, "0,2": 2, "0,1": 1, "matmul": 2, "1": 1}
DROPPED = (0.1, "0,1")


def count(
    run_program: RunProgram, kind: str, cases: list[tuple[Any, ...]]
) -> dict[tuple[Any, ...], Any]:
    """What a step of each case computes."""
    texts = json.dumps([[kind, *case] for case in cases])
    outcome = run_program("plans/products.py", SOURCE, COUNTED, texts)
    assert outcome.exit_code == 0, outcome.stderr
    return dict(zip(cases, outcome.printed, strict=True))


@pytest.mark.slow
def test_what_is_not_kept_is_computed_again(run_program: RunProgram) -> None:
    found = count(run_program, "chain", [*CHAINS, *NOT_THERE])
    products = {case: found[case]["products"] - AS_IT_IS for case in CHAINS}
    assert products == CHAINS
    # Equal blocks are one program to the compiler, planned or not.
    assert {found[case]["graphs"] for case in CHAINS if case[0] == "blocks"} == {2}
    for case in NOT_THERE:
        reason = "has 2 products, numbered from 0, and none with the number 2"
        assert reason in found[case]["refused"]


def test_attention_is_saved_where_it_is_to_be_and_not_with_dropout(run_program: RunProgram) -> None:
    found = count(run_program, "attention", [*((0.0, saves) for saves in ATTENTION), DROPPED])
    assert {saves: found[0.0, saves]["attention"] for saves in ATTENTION} == ATTENTION
    assert "product 1 draws random numbers" in found[DROPPED]["refused"]
