"""Replays plans with real numbers, before a user gets one: whether training stays the same.

replays = Replays(run, measurements)
replays.of(actions).is_same
"""

from __future__ import annotations

from ullage.act.techniques.replaying.outcome import Replayed
from ullage.search.costs.measure import Measurements, Runner, RunRequest
from ullage.search.findings import Key, key_of, kind_of
from ullage.search.menu import Actions


class Replays:
    """The replays of a search; each is made once.

    Attributes:
        different: sets of techniques, on any modules, that change the training, and how. No plan
            contains them any more.
    """

    def __init__(self, run: Runner, known: Measurements) -> None:
        self._run = run
        self._measured = known
        self._found: dict[Key, Replayed] = {}
        self.different: dict[Key, str] = {}

    def of(self, actions: Actions) -> Replayed:
        """The outcome of the replay of a plan."""
        key = key_of(actions)
        if key not in self._found:
            self._found[key] = self._replay(actions)
        return self._found[key]

    def is_made(self, actions: Actions) -> bool:
        """True if a plan was replayed."""
        return key_of(actions) in self._found

    def difference(self, actions: Actions) -> str:
        """How a plan is known to change the training; empty: it is not known to."""
        own = set(kind_of(actions))
        return next((why for kinds, why in self.different.items() if own.issuperset(kinds)), "")

    def note_different(self, actions: Actions) -> Actions:
        """Finds a smallest part of a plan that changes the training, and excludes it."""
        why = self.of(actions).difference
        for action in actions if len(actions) > 1 else ():
            alone = self.of((action,))
            if not alone.is_same:
                actions, why = (action,), alone.difference
                break
        self.different[kind_of(actions)] = why
        return actions

    def _replay(self, actions: Actions) -> Replayed:
        (report,) = self._run([RunRequest(self._measured.plan(actions), replays=True)])
        outcome = report.program.plan
        if outcome is not None and outcome.replayed is not None:
            return outcome.replayed
        names = (action.technique for action in actions)
        return Replayed(not_done=dict.fromkeys(names, f"it was not come to: {report.reason}"))
