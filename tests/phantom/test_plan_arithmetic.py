"""Plans with real arithmetic, on the CPU: what is trained under them is what is trained without."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "plans" / "arithmetic.py"
MODELS = ("gpt2", "llama", "vit", "resnet", "t5", "mixture", "mlp", "mamba")
TIMEOUT_S = 600
ALIKE = ("equal", "close")
FAULTS = ("forward", "backward", "hook", "step", "apply")

Judge = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def judge(thin_python: Path) -> Judge:
    """`judge("mixed", "0", "4")`: what came of each case; see the program."""

    def run(*words: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [str(thin_python), str(PROGRAM), *words], check=False, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.fixture(scope="session")
def alone(judge: Judge) -> list[dict[str, Any]]:
    """Each technique of the same mathematics by itself, on each model."""
    return judge("alone")


def technique(case: dict[str, Any]) -> str:
    """The only technique of a case."""
    (action,) = case["actions"]
    return str(action["technique"])


def test_a_technique_alone_trains_as_without_it_or_says_that_it_does_not_go(
    alone: list[dict[str, Any]],
) -> None:
    wrong = [case for case in alone if not case["result"].startswith((*ALIKE, "refused: '"))]
    assert wrong == []


def test_every_technique_goes_with_some_model(alone: list[dict[str, Any]]) -> None:
    went = {technique(case) for case in alone if case["result"] in ALIKE}
    assert went == {technique(case) for case in alone}


def test_checkpointing_is_equal_bit_for_bit_on_every_model(alone: list[dict[str, Any]]) -> None:
    results = {case["model"]: case["result"] for case in alone if technique(case) == "checkpoint"}
    assert results == dict.fromkeys(MODELS, "equal")


def check_mixed(cases: list[dict[str, Any]], num_cases: int) -> None:
    """All alike, but for what is found out only while the program runs."""
    assert len(cases) == num_cases
    assert [case for case in cases if not case["result"].startswith((*ALIKE, "refused: '"))] == []
    refused = sum(case["result"].startswith("refused") for case in cases)
    assert refused <= num_cases // 10
    assert sum(len(case["actions"]) > 1 for case in cases) > num_cases // 2


def check_faults(cases: list[dict[str, Any]]) -> None:
    """Whatever broke, and wherever: nothing was left, and the training goes on as without a plan.
    What a technique does not run through (a leaf of a tile, say) is not reached.
    """
    assert [
        case for case in cases if not case["result"].startswith(("equal after", "refused"))
    ] == []
    reached = Counter(case["result"].removeprefix("equal after ") for case in cases)
    assert all(reached[where] for where in FAULTS), reached


def test_techniques_go_together(judge: Judge) -> None:
    check_mixed(judge("mixed", "0", "5"), 5 * len(MODELS))


def test_nothing_stays_after_an_exception(judge: Judge) -> None:
    check_faults(judge("faults", "0", "5"))


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_fifty_plans_of_each_model_train_as_without_them(judge: Judge, model: str) -> None:
    check_mixed(judge("mixed", "0", "50", model), 50)


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_nothing_stays_of_fifty_plans_after_an_exception(judge: Judge, model: str) -> None:
    check_faults(judge("faults", "0", "50", model))
