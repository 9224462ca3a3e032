"""Optimizer states that are stored in another form between steps.

The step processes the parameters in parts. The states of each part are fetched, used by the
optimizer's own step, and stored again. So besides the stored form, only the states of a few parts
exist at a time. `optimizer.state` contains the stored form, with the same keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ullage.act.techniques.means.optimizer_parts import check_steps_in_parts, parts, step_some
from ullage.act.techniques.means.own_step import OwnStep

if TYPE_CHECKING:
    from ullage.act.techniques.applying.changes import Changes

States = dict[Any, dict[str, Any]]
"""The states of parameters, by their names in the optimizer."""


class Store(Protocol):
    """Stores states. `fetch`, `begin` and `keep` are called for the parts in the same order."""

    num_ahead: int
    """The number of parts that are fetched ahead of the part that is stepped."""

    def fetch(self, stored: States) -> States:
        """The states of a part for its step; they are valid after `begin`."""

    def begin(self) -> None:
        """Called before the step of the next part."""

    def keep(self, states: States, stored: States) -> None:
        """Stores states, into the existing stored ones if there are any."""

    def end(self) -> None:
        """Called after the last part was stored."""

    def settle(self) -> None:
        """Waits until the host can read the stored states."""


class StoredStates:
    """An optimizer whose states are in a store between its steps."""

    def __init__(self, optimizer: Any, store: Store, part_bytes: int) -> None:
        self._optimizer = optimizer
        self._store = store
        self._part_bytes = part_bytes

    def apply(self, technique: str, changes: Changes) -> None:
        """Stores the states until the changes are undone.

        Raises:
            PlanError: the optimizer cannot be stepped in parts.
        """
        optimizer = self._optimizer
        check_steps_in_parts(optimizer, technique)
        self._keep_all()
        changes.on_undo(self._fetch_all)
        OwnStep(optimizer, self._step).apply(changes)
        changes.hook(optimizer.register_state_dict_pre_hook(lambda _: self._store.settle()))
        changes.hook(optimizer.register_load_state_dict_post_hook(lambda _: self._keep_all()))

    def _step(self) -> None:
        store, state = self._store, self._optimizer.state
        fetched: list[States] = []
        all_parts = list(parts(self._optimizer, self._part_bytes))
        for index, (group, part) in enumerate(all_parts):
            ahead = all_parts[index + len(fetched) : index + 1 + store.num_ahead]
            fetched += [store.fetch(_of(state, more)) for _, more in ahead]
            store.begin()
            states = fetched.pop(0)
            step_some(self._optimizer, group, part, states)
            stored = _of(state, part)
            store.keep(states, stored)
            state.update(stored)
        store.end()

    def _keep_all(self) -> None:
        state = self._optimizer.state
        for parameter in list(state):
            stored: States = {parameter: {}}
            self._store.keep({parameter: state[parameter]}, stored)
            state.update(stored)
        self._store.end()

    def _fetch_all(self) -> None:
        state = self._optimizer.state
        for parameter in list(state):
            fetched = self._store.fetch({parameter: state[parameter]})
            self._store.begin()
            state.update(fetched)
        self._store.settle()


def is_values(state: Any) -> bool:
    """True if a state is a tensor of values, rather than a count of steps."""
    return hasattr(state, "numel") and state.numel() > 1


def _of(state: States, part: list[Any]) -> States:
    return {parameter: dict(state.get(parameter, {})) for parameter in part}
