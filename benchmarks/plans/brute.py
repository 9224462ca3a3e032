"""The plans that people would write by hand, against the one that was chosen: one treatment on k of
N blocks, the first or evenly spaced, all or none, by itself or under the same moves as the chosen
plan; and each move by itself.

Only a plan that is faster by the clock can beat the chosen one, and of a row of growing k
the last that is faster takes the least memory. It and the one before are run on the device, unless
the profile has them far over the budget. The others of the row keep more: they cannot fit if the
last does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.plans.probed import ProbedSearch
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Action
from ullage.search.findings import Candidate, Key, key_of
from ullage.search.menu import Actions, are_exclusive

# Of the step: what is less is rounding.
_FASTER = 1e-6
# Of the budget: plans that are expected to take more than that beyond it are not run.
FAR_OVER = 0.1
_ORDER = tuple(TECHNIQUES)


@dataclass(frozen=True, slots=True)
class Contest:
    """What became of the rivals of one plan.

    Attributes:
        num_rivals: plans compared.
        num_faster: those that are faster by the model.
        num_run: those that were run on the device.
        least_over_bytes: by how much the budget was missed at least; None: none was run.
        winner: one that is faster and fits; empty: there is none.
    """

    num_rivals: int
    num_faster: int
    num_run: int
    least_over_bytes: int | None
    winner: str


def contest(search: ProbedSearch, best: Candidate | None, budget_bytes: int) -> Contest:
    """Looks for a plan that is faster than the chosen one and fits; where none was chosen, for any
    that fits.
    """
    num_rivals, num_faster, wanted = 0, 0, dict[Key, Actions]()
    for row in _rows(search, best):
        foreseen = [search.foresee(one) for one in row]
        faster = [one for one in foreseen if best is None or _is_faster(one, best)]
        num_rivals, num_faster = num_rivals + len(row), num_faster + len(faster)
        near = [one for one in faster[-2:] if one.used_bytes <= budget_bytes * (1 + FAR_OVER)]
        wanted |= {key_of(one.actions): one.actions for one in near}
    seen = search.look_at(list(wanted.values()))
    over = [one.used_bytes - budget_bytes for one in seen if one.seen is not None]
    fitting = [one for one in seen if one.seen is not None and one.seen.fits]
    winners = [one.name for one in fitting if one.used_bytes <= budget_bytes]
    return Contest(
        num_rivals, num_faster, len(seen), min(over, default=None), next(iter(winners), "")
    )


def _is_faster(one: Candidate, best: Candidate) -> bool:
    return one.step_s < best.step_s * (1 - _FASTER)


def _rows(search: ProbedSearch, best: Candidate | None) -> Iterator[list[Actions]]:
    """Rows of plans, in each of which more blocks are treated from one to the next."""
    own = tuple(one for one in best.actions if not one.modules) if best is not None else ()
    yield from ([move] for move in search.moves)
    paths = [block.path for block in search.blocks]
    for moves in ((), own) if own else ((),):
        yield [moves]
        for treatment in search.treatments:
            if any(are_exclusive(one, move) for one in treatment for move in moves):
                continue
            for some in (_first(paths), _spaced(paths)):
                yield [_in_order((*moves, *_on(treatment, chosen))) for chosen in some]


def _on(treatment: Actions, paths: Sequence[str]) -> Actions:
    return tuple(replace(one, modules=tuple(paths)) for one in treatment)


def _first(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    for k in range(1, len(paths) + 1):
        yield paths[:k]


def _spaced(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    for k in range(1, len(paths)):
        yield [paths[place * len(paths) // k] for place in range(k)]


def _in_order(actions: Sequence[Action]) -> Actions:
    """As they are applied."""
    return tuple(sorted(actions, key=lambda one: _ORDER.index(one.technique)))
