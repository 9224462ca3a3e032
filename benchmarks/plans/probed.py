"""A search that can be asked about any mixture of its treatments and moves, on a rung or not.

search = ProbedSearch(make_runner(trials, job), gpu, Semantics.SAME)
search.foresee(plan), search.look_at([plan]), search.bound_s(best, budget_bytes)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ullage.search.costs.blocks import Block
from ullage.search.findings import Candidate, key_of, kind_of
from ullage.search.ladder import Ladder
from ullage.search.menu import Actions
from ullage.search.proposals import Rung
from ullage.search.search import Search


class ProbedSearch(Search):
    """The search, with its treatments and moves, and what the model expects of any plan of them."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The modules that get treatments one by one."""
        self.begin()
        return self._measured.blocks

    @property
    def treatments(self) -> tuple[Actions, ...]:
        """The techniques for blocks, each applied to all of them."""
        self.begin()
        return tuple(treatment.actions for treatment in self._measured.treatments)

    @property
    def moves(self) -> tuple[Actions, ...]:
        """The techniques for the optimizer or the whole program, one by one."""
        self.begin()
        return tuple(move.actions for move in self._measured.moves)

    def look_at(self, plans: Sequence[Actions]) -> list[Candidate]:
        """Runs plans of these treatments and moves on the device."""
        self.begin()
        self._runs.see(plans, self._gpu.total_bytes)
        return [self.foresee(plan) for plan in plans]

    def foresee(self, actions: Actions) -> Candidate:
        """A plan of these treatments and moves: what the model predicts, and its run if any."""
        rung = foresee(self._known_ladder, actions)
        used = rung.reserved_bytes + self._outside_bytes
        figures = self._known_ladder.step_s + rung.time_s, rung.peak_bytes, used
        return self._make_candidate(actions, figures, self._gpu.total_bytes)

    def bound_s(self, best: Candidate, budget_bytes: int) -> float:
        """A lower bound, by the model, of the step time of all mixtures that fit a budget; at most
        the step time of `best`.
        """
        room, ladder = budget_bytes - self._outside_bytes, self._known_ladder
        return ladder.bound_s(Rung(best.step_s - ladder.step_s, room, 0, 0, 0))

    @property
    def _known_ladder(self) -> Ladder:
        if self._ladder is None:
            raise RuntimeError("the program did not run")
        return self._ladder


def foresee(ladder: Ladder, actions: Actions) -> Rung:
    """What a ladder expects of any plan of its moves and treatments, as a rung."""
    moves = {key_of((action,)) for action in actions if not action.modules}
    number, setting = next(
        (number, setting)
        for number, setting in enumerate(ladder._settings)
        if {key_of((move,)) for move in setting.actions} == moves
    )
    measured = ladder._measured
    numbers = {kind_of(each.actions): place for place, each in enumerate(measured.treatments, 1)}
    done = [
        [action for action in actions if block.path in action.modules] for block in measured.blocks
    ]
    choice = np.array(
        [numbers[kind_of(treatment)] if treatment else 0 for treatment in done], dtype=np.int64
    )
    levels = ladder._problem.levels(choice)
    (peak,), (reserved,) = ladder._expected.of(number, choice[None], levels[None])
    time_s = ladder._problem.time_s(choice) + setting.extra_s
    return Rung(time_s, int(reserved), int(peak), number, 0)
