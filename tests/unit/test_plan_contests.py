"""Plans as people write them by hand, against a chosen one: benchmarks/plans/brute.py."""

from dataclasses import dataclass, field
from typing import cast

import pytest
from benchmarks.plans.brute import contest
from benchmarks.plans.probed import ProbedSearch

from ullage.act.techniques.technique import Action
from ullage.search.costs.blocks import Block
from ullage.search.findings import Candidate, Seen
from ullage.search.menu import Actions

CHECKPOINT, KERNEL = Action("checkpoint"), Action("optimizer_kernel")
BLOCKS = tuple(Block(f"layers.{place}", "Layer") for place in range(4))


@dataclass
class Model:
    """Four layers that keep 10 bytes each, and take a second more where they are checkpointed; the
    kernel of the optimizer saves two seconds of 20, and takes `kernel_bytes`.
    """

    kernel_bytes: int = 0
    # What a run takes beyond what was foreseen.
    unforeseen_bytes: int = 0
    ran: list[Actions] = field(default_factory=list)

    blocks = BLOCKS
    treatments = ((CHECKPOINT,),)
    moves = ((KERNEL,),)

    def foresee(self, actions: Actions) -> Candidate:
        """By the model."""
        num = sum(len(one.modules) for one in actions)
        has_kernel = KERNEL in actions
        step_s = 20.0 + num - 2 * has_kernel
        used = 100 - 10 * num + self.kernel_bytes * has_kernel
        name = f"{num} of 4{', kernel' if has_kernel else ''}"
        return Candidate(name, actions, step_s, used, used)

    def look_at(self, plans: list[Actions]) -> list[Candidate]:
        """As they were run."""
        self.ran += plans
        return [self.run(one) for one in plans]

    def run(self, actions: Actions) -> Candidate:
        """With what it really takes."""
        told = self.foresee(actions)
        used = told.used_bytes + self.unforeseen_bytes
        seen = Seen(used <= 100, "", used, used, 0, 0)
        return Candidate(told.name, actions, told.step_s, used, used, seen)


def chosen(num: int) -> Actions:
    """So many layers checkpointed, with the kernel."""
    paths = tuple(one.path for one in BLOCKS[:num])
    return (Action("checkpoint", paths), KERNEL)


def held(model: Model, num: int, budget_bytes: int) -> str:
    """The winner of a contest with a chosen plan; empty: it is the chosen one."""
    best = model.foresee(chosen(num))
    return contest(cast("ProbedSearch", model), best, budget_bytes).winner


def test_no_plan_beats_the_one_with_the_fewest_layers_that_fits() -> None:
    assert held(Model(), 3, 70) == ""


def test_a_plan_with_fewer_layers_that_fits_too_wins() -> None:
    assert held(Model(), 4, 70) == "3 of 4, kernel"


def test_a_plan_that_takes_less_than_was_foreseen_wins() -> None:
    assert held(Model(unforeseen_bytes=-5), 3, 78) == "2 of 4, kernel"


@pytest.mark.parametrize("kernel_bytes", [0, 50])
def test_a_treatment_without_the_moves_of_the_chosen_plan_is_looked_at(kernel_bytes: int) -> None:
    model = Model(kernel_bytes=kernel_bytes)
    # Three layers and the kernel take 21 s: as long as one layer without it.
    assert held(model, 3, 100) == ("0 of 4, kernel" if kernel_bytes == 0 else "0 of 4")


def test_where_nothing_was_found_anything_that_fits_wins() -> None:
    assert contest(cast("ProbedSearch", Model()), None, 60).winner == "4 of 4"
    assert contest(cast("ProbedSearch", Model()), None, 59).winner == ""


def test_of_a_row_only_the_last_that_are_faster_and_near_the_budget_are_run() -> None:
    model = Model()
    told = contest(cast("ProbedSearch", model), model.foresee(chosen(3)), 75)
    assert [len(one[0].modules) for one in model.ran if KERNEL in one] == [2, 2]
    assert told.num_run == len(model.ran) < told.num_faster < told.num_rivals
    assert told.least_over_bytes == 5
