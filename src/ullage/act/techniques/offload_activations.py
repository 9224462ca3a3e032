"""Tensors that modules save for backward are moved to pinned host memory between forward and
backward.

The engine is our own (offload_engine.py): torch's save_on_cpu also copies views and parameters, and
another engine had races that gave NaN (torchtune issue 1867). If "checkpoint" is applied to the
same modules first, only their inputs are moved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.offloading.offload_engine import Engine
from ullage.act.techniques.means.offloading.offload_link import make_link
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target


def _apply(target: Target, action: Action) -> None:
    _check_apart(action.modules)
    least_bytes = int(OFFLOAD_ACTIVATIONS.value_of(action, "least_kib")) * 2**10

    @functools.cache
    def engine_for(device_type: str) -> Engine:
        return Engine(make_link(device_type), device_type, least_bytes)

    # A program may move its model after this.
    offload_modules(
        target,
        action.modules,
        lambda: engine_for(next(target.model.parameters()).device.type),
    )


def offload_modules(
    target: Target, paths: tuple[str, ...], engine_now: Callable[[], Engine]
) -> None:
    """Makes an engine offload the tensors that modules save for backward."""

    def around(forward: Any, *arguments: Any, **keywords: Any) -> Any:
        from torch import compiler, is_grad_enabled

        if not is_grad_enabled():
            return forward(*arguments, **keywords)
        if compiler.is_compiling():
            raise PlanError(
                "'offload_activations' needs modules that run eagerly; this one is compiled"
            )
        module = forward.__self__
        with engine_now().round(chain(module.parameters(), module.buffers())):
            return forward(*arguments, **keywords)

    for path in paths:
        target.wrap_forward(path, around)
    for module in _beside(target.model, {target.module(path) for path in paths}):
        target.changes.hook(
            module.register_forward_hook(lambda _, __, output: engine_now().pass_by(output))
        )


def _beside(module: Any, offloaded: set[Any]) -> Iterator[Any]:
    """The outermost modules that are not offloaded, and have no offloaded module inside."""
    for child in module.children():
        if not offloaded.isdisjoint(child.modules()):
            if child not in offloaded:
                yield from _beside(child, offloaded)
        else:
            yield child


def _check_apart(paths: tuple[str, ...]) -> None:
    for path in paths:
        inner = [other for other in paths if other.startswith(f"{path}.")]
        if inner:
            raise PlanError(
                f"'offload_activations': {inner[0]} is a part of {path}; keep one of the two"
            )


OFFLOAD_ACTIVATIONS = Technique(
    name="offload_activations",
    does="moves tensors saved for backward to pinned host memory, and back before backward",
    precondition="tensors saved for backward are not changed in place",
    proof="tensor versions are compared before memory is freed",
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://docs.pytorch.org/docs/stable/autograd.html#saved-tensors-hooks-default-hooks",
    apply=_apply,
    settings={
        "least_kib": Setting(default=64, what="KiB; smaller storages stay on the GPU", least=0)
    },
)
