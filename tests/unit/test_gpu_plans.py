"""The page on plans on a real GPU, from made-up measurements; and the plans that are to be run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from benchmarks.plans.gpu import PLANS, PROGRAM, wanted
from benchmarks.plans.gpu_page import median_ms, page_lines, spearman, write_page

GIB = 1024**3


def run(name: str, step_ms: float, foreseen_s: float | None = None) -> dict[str, Any]:
    """A run whose first steps are slow."""
    foreseen = None
    if foreseen_s is not None:
        foreseen = {
            "step_s": foreseen_s, "peak_used_bytes": 10 * GIB, "peak_allocated_bytes": 9 * GIB,
            "is_chosen": name == "chosen",
        }  # fmt: skip
    return {
        "name": name, "foreseen": foreseen, "is_plan": foreseen is not None or "again" in name,
        "device": "NVIDIA H100", "torch": "2.11.0", "steps_ms": [900.0] * 5 + [step_ms] * 10,
        "peak_used_bytes": 11 * GIB, "peak_allocated_bytes": 10 * GIB,
    }  # fmt: skip


def found(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What was measured."""
    return {
        "date": "2026-11-22", "is_phantom": False, "plans": "2.11.0",
        "program": ["train.py"], "runs": list(runs), "left_out": [], **changes,
    }  # fmt: skip


def test_the_rank_correlation_is_that_of_the_ranks() -> None:
    assert spearman([1, 2, 3, 40], [10, 20, 30, 31]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Textbook: 1 - 6 x sum of d^2 / (n (n^2 - 1)) without ties.
    assert spearman([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(1 - 6 * 4 / 60)
    for left in itertools.permutations([1, 1, 2, 3]):
        assert spearman(left, left) == pytest.approx(1)


def test_a_step_is_the_median_of_those_after_the_first() -> None:
    assert median_ms(run("x", 20.0)) == 20.0
    assert median_ms({"steps_ms": [1.0, 2.0]}) is None
    assert median_ms({"failed": "no room"}) is None


def test_the_page_compares_what_was_foreseen_with_what_was_measured() -> None:
    runs = [run("as it is", 20.0, 0.010), run("chosen", 25.0, 0.012), run("slow", 22.0, 0.019)]
    page = "\n".join(
        page_lines(
            found(
                *runs, run("trl", 60.0), run("as it is, again", 20.5),
                {"name": "bad", "foreseen": None, "is_plan": True, "failed": "no room"},
                left_out=["late"],
            )
        )
    )  # fmt: skip
    assert (
        "| **chosen** | 12.0 ms | 25.0 ms | 10.00 GiB | 11.00 GiB | 9.00 GiB | 10.00 GiB |" in page
    )
    assert page.index("| as it is |") < page.index("| slow |") < page.index("| **chosen** |")
    assert "3 plans: 0.500 (goal: 0.9)" in page
    assert "off by 10.00 % in the median, 10.00 % at most" in page
    assert "| trl | 60.0 ms |" in page and "once more at the end: 20.5 ms" in page
    assert "Not measured: bad: no room." in page and "want of time: late." in page


def test_what_was_measured_on_the_phantom_makes_no_page() -> None:
    with pytest.raises(ValueError, match="times mean nothing"):
        write_page(found(run("as it is", 1.0, 0.1), is_phantom=True))


def test_the_plans_to_be_run_are_plans_that_this_ullage_reads() -> None:
    runs = list(wanted(PLANS))
    plans = [one.plan for one in runs if one.plan is not None]
    assert len(plans) >= 8
    assert {plan.made_for.model for plan in plans} == {"GPT"}
    names = [one.name for one in runs]
    assert len(set(names)) == len(names) and "as it is, again" in names
    assert sum(one.plan is None and one.foreseen is not None for one in runs) == 1
    assert PROGRAM[0] == "examples/gpt2/train.py"
