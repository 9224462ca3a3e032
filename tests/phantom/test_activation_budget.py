"""The count of recomputation of docs/results/activation-budget.md, on a chain with a known one.

Forward has two products a block, backward four. What backward needs of a block is its input and
what its tanh gave.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.techniques.made_for import MadeFor
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Action

pytestmark = pytest.mark.phantom

COUNTED = Path(__file__).parents[2] / "benchmarks" / "plans" / "programs"
BLOCKS, PARAMETERS = 4, 526_336
AS_IT_IS = 6 * BLOCKS
RunProgram = Callable[..., Any]


def chain(run_program: RunProgram, how: str, *budgets: str, **options: Any) -> list[dict[str, Any]]:
    """What was counted under each budget."""
    outcome = run_program("compile/chain.py", str(COUNTED), how, *budgets, **options)
    assert outcome.exit_code == 0, outcome.stderr
    found: list[dict[str, Any]] = outcome.printed
    return found


def save(path: Path, torch_version: str, saves: str) -> None:
    """A plan that has all blocks of the chain keep some products."""
    blocks = tuple(str(number) for number in range(BLOCKS))
    made_for = MadeFor(
        torch_version, "Sequential", PARAMETERS, dict.fromkeys(blocks, "Sequential"), "SGD"
    )
    Plan((Action("selective_checkpoint", blocks, {"saves": saves}),), made_for).save(path)


@pytest.mark.parametrize(
    ("how", "again"),
    [
        ("blocks", BLOCKS),  # the first product of each
        # all of them but the last, whose result nobody needs
        pytest.param("whole", 2 * BLOCKS - 1, marks=pytest.mark.nightly),
    ],
)
def test_torch_computes_again_what_it_does_not_keep(
    run_program: RunProgram, how: str, again: int
) -> None:
    kept, nothing = chain(run_program, how, "1", "0")
    assert kept["products"] == AS_IT_IS
    assert nothing["products"] == AS_IT_IS + again


@pytest.mark.parametrize(
    ("saves", "again"),
    [
        ("matmul", 0),
        ("1", BLOCKS),
        pytest.param("attention", BLOCKS, marks=pytest.mark.nightly),
        pytest.param("0", 0, marks=pytest.mark.nightly),
    ],
)
def test_a_plan_computes_again_what_it_does_not_save(
    run_program: RunProgram, torch_version: str, tmp_path: Path, saves: str, again: int
) -> None:
    save(tmp_path / "plan.json", torch_version, saves)
    (found,) = chain(run_program, "blocks", "1", options=("--plan", str(tmp_path / "plan.json")))
    assert found["products"] == AS_IT_IS + again
    assert found["graphs"] == 2  # equal blocks are one program to the compiler, planned or not


@pytest.mark.parametrize("how", [pytest.param("blocks", marks=pytest.mark.nightly), "nothing"])
def test_a_product_that_is_not_there_cannot_be_saved(
    run_program: RunProgram, torch_version: str, tmp_path: Path, how: str
) -> None:
    save(tmp_path / "plan.json", torch_version, "0,2")
    outcome = run_program(
        "compile/chain.py", str(COUNTED), how, "1", options=("--plan", str(tmp_path / "plan.json"))
    )
    assert outcome.exit_code != 0
    assert "has 2 products, numbered from 0, and none with the number 2" in outcome.stderr


@pytest.mark.parametrize(
    ("saves", "num"),
    [
        ("attention", 1),
        ("0,2", 2),
        ("0,1", 1),
        pytest.param("matmul", 2, marks=pytest.mark.nightly),
        pytest.param("1", 1, marks=pytest.mark.nightly),
    ],
)
def test_attention_without_dropout_is_saved_where_it_is_to_be(
    run_program: RunProgram, torch_version: str, tmp_path: Path, saves: str, num: int
) -> None:
    made_for = MadeFor(torch_version, "Sequential", 16_640, {"0": "Attention"}, "SGD")
    plan = Plan((Action("selective_checkpoint", ("0",), {"saves": saves}),), made_for)
    plan.save(tmp_path / "plan.json")
    outcome = run_program("plans/attends.py", options=("--plan", str(tmp_path / "plan.json")))
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed == [num]


def test_attention_with_dropout_cannot_be_saved_by_its_number(
    run_program: RunProgram, torch_version: str, tmp_path: Path
) -> None:
    made_for = MadeFor(torch_version, "Sequential", 16_640, {"0": "Attention"}, "SGD")
    plan = Plan((Action("selective_checkpoint", ("0",), {"saves": "0,1"}),), made_for)
    plan.save(tmp_path / "plan.json")
    options = ("--plan", str(tmp_path / "plan.json"))
    outcome = run_program("plans/attends.py", "0.1", options=options)
    assert outcome.exit_code != 0
    assert "product 1 draws random numbers" in outcome.stderr
