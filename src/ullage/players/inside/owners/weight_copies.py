"""Copies of a model's weights that are not modules: averages that a program keeps in a list or
dict.

A copy.deepcopy, an AveragedModel or timm's ModelEmaV3 is a module, whose parameters are found as
those of any other. diffusers' EMAModel and torch_ema keep plain tensors. They are known by their
shapes, which are those of the model's parameters in their order, and by living on: what was there
after the first step and still is after the second was kept for later. (Gradients have these shapes
too, and are others in each step.) A list or dict from before the import of torch is not looked at.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Container, Iterator, Sequence
from itertools import compress
from types import ModuleType
from typing import Any

from ullage.players.inside.owners.module_trees import find_roots, of_kinds
from ullage.players.inside.owners.ownership import Claims

_MIN_TENSORS = 2


class WeightCopies:
    """Looks for copies. One for the process."""

    def __init__(self, torch: ModuleType, claims: Claims) -> None:
        self._tensor: type = torch.Tensor
        self._claims = claims
        self._candidates: list[list[tuple[Any, weakref.ref[Any]]]] = []

    def look(self, modules: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """After a step: notes what has the shapes of the weights, of all modules that there are."""
        models = [list(root.parameters()) for root in find_roots(modules)]
        by_count: dict[int, list[list[Any]]] = {}
        for parameters in models:
            if len(parameters) >= _MIN_TENSORS:
                by_count.setdefault(len(parameters), []).append(parameters)
        known = _owned(models, optimizers)
        self._candidates = [
            [
                (parameter, weakref.ref(copy))
                for parameter, copy in zip(parameters, tensors, strict=True)
            ]
            for tensors in self._containers(by_count.keys())
            for parameters in by_count[len(tensors)]
            if _is_copy(tensors, parameters, known)
        ]

    def claim(self) -> None:
        """After a later step: what is still there is kept beside the model."""
        for pairs in self._candidates:
            copies = [(parameter, reference()) for parameter, reference in pairs]
            if all(copy is not None for _, copy in copies):
                for parameter, copy in copies:
                    self._claims.claim_for(parameter, copy, "buffer")
        self._candidates = []

    def _containers(self, counts: Container[int]) -> Iterator[Sequence[Any]]:
        """The tensors of each list, tuple and dict that has this many and nothing else."""
        containers = of_kinds(gc.get_objects(), {list, tuple, dict})
        for container in compress(containers, map(counts.__contains__, map(len, containers))):
            values = list(container.values()) if type(container) is dict else container
            if all(isinstance(value, self._tensor) for value in values):
                yield values


def _owned(models: Sequence[Sequence[Any]], optimizers: Sequence[Any]) -> set[int]:
    """The parameters, their gradients and the optimizers' states, which lists may hold too."""
    parameters = [parameter for parameters in models for parameter in parameters]
    parameters += [parameter for each in optimizers for group in each.param_groups
                   for parameter in group["params"]]  # fmt: skip
    known_ids = {id(parameter) for parameter in parameters} | {
        id(parameter.grad) for parameter in parameters
    }
    for each in optimizers:
        for state in each.state.values():
            known_ids |= (
                {id(value) for value in state.values()} if isinstance(state, dict) else set()
            )
    return known_ids


def _is_copy(tensors: Sequence[Any], parameters: Sequence[Any], known: set[int]) -> bool:
    """True if these are no one's yet, on the device, and of the parameters' shapes."""
    return all(
        id(tensor) not in known and tensor.is_cuda and tensor.shape == parameter.shape
        for tensor, parameter in zip(tensors, parameters, strict=True)
    )
