"""The count of recomputation of docs/results/activation-budget.md, on a chain with a known one.

Forward has two products a block, backward four. What backward needs of a block is its input and
what its tanh gave.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import SOURCE, printed_by
from tests.phantom.bare_gpu import bare_environment

pytestmark = [pytest.mark.phantom, pytest.mark.slow]

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


def count(python: Path, kind: str, cases: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], Any]:
    """What a step of each case computes, on the phantom."""
    texts = json.dumps([[kind, *case] for case in cases])
    words = ("plans/products.py", SOURCE, COUNTED, texts)
    found = printed_by(python, *words, env=bare_environment(python))
    return dict(zip(cases, found, strict=True))


def test_what_is_not_kept_is_computed_again(thin_python: Path) -> None:
    found = count(thin_python, "chain", [*CHAINS, *NOT_THERE])
    products = {case: found[case]["products"] - AS_IT_IS for case in CHAINS}
    assert products == CHAINS
    # Equal blocks are one program to the compiler, planned or not.
    assert {found[case]["graphs"] for case in CHAINS if case[0] == "blocks"} == {2}
    for case in NOT_THERE:
        reason = "has 2 products, numbered from 0, and none with the number 2"
        assert reason in found[case]["refused"]


def test_attention_is_saved_where_it_is_to_be_and_not_with_dropout(thin_python: Path) -> None:
    found = count(thin_python, "attention", [*((0.0, saves) for saves in ATTENTION), DROPPED])
    assert {saves: found[0.0, saves]["attention"] for saves in ATTENTION} == ATTENTION
    assert "product 1 draws random numbers" in found[DROPPED]["refused"]
