"""An optimizer as its `step()` is called: who holds what, and their version counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ullage.runtime.optimizers.sgd_step import Finished
from ullage.runtime.reads.counters import Counters
from ullage.runtime.sharded.local_tensors import version_of


@dataclass(frozen=True, slots=True)
class Before:
    """Version counters when `step()` was called.

    Attributes:
        parameters, versions: those of the optimizer, and their counters.
        gradient_versions: of their gradients; -1 where there is none.
        states, state_versions: owner, name and tensor of each state, and its counter.
        with_state: the identities of parameters that have states.
        counters: what reads the counters of parameters and of states.
        is_begun: whether a part of the step was done before.
    """

    parameters: list[Any]
    versions: Sequence[int]
    gradient_versions: Sequence[int]
    states: list[tuple[Any, str, Any]]
    state_versions: Sequence[int]
    with_state: frozenset[int]
    counters: tuple[Counters, Counters]
    is_begun: bool = False

    def without(self, finished: Finished, state: Mapping[Any, Any]) -> Before:
        """As if the step had begun when some parameters were finished already."""
        ids = {*map(id, finished.parameters)}
        had = {(id(owner), name) for owner, name, _ in self.states}
        states = self.states + [
            (owner, name, tensor)
            for owner in finished.parameters
            for name, tensor in state.get(owner, {}).items()
            if (id(owner), name) not in had and isinstance(tensor, torch.Tensor)
        ]
        new = states[len(self.states) :]
        versions = [*self.state_versions, *(version_of(each) for *_, each in new)]
        return replace(
            self,
            versions=[version_of(each) if id(each) in ids else version
                      for each, version in zip(self.parameters, self.versions, strict=True)],
            states=states,
            state_versions=[version_of(each) if id(owner) in ids else version
                            for (owner, _, each), version in zip(states, versions, strict=True)],
            with_state=self.with_state | ids,
            is_begun=bool(ids),
        )  # fmt: skip
