"""Replaces the step of an optimizer, also if something else has wrapped that step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullage.act.techniques.applying.changes import Changes


class OwnStep:
    """Steps instead of an optimizer, whose own step then has nothing to do.

    Args:
        optimizer: any torch optimizer.
        step: called when all gradients are available.
    """

    def __init__(self, optimizer: Any, step: Callable[[], None]) -> None:
        self._optimizer = optimizer
        self._step = step
        self._hidden: list[tuple[dict[str, Any], list[Any]]] = []

    def apply(self, changes: Changes) -> None:
        """Replaces the step until the changes are undone."""
        changes.on_undo(self._show)
        changes.hook(self._optimizer.register_step_pre_hook(self._before))
        changes.hook(self._optimizer.register_step_post_hook(self._show))

    def _before(self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        self._show()  # a step that failed may have left parameters hidden
        call = with_closure_called(arguments, keywords)
        self._step()
        for group in self._optimizer.param_groups:
            self._hidden.append((group, group["params"]))
            group["params"] = []
        return call

    def _show(self, *_: Any) -> None:
        while self._hidden:
            group, parameters = self._hidden.pop()
            group["params"] = parameters


def with_closure_called(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The arguments of a step after its closure was called, which computes the gradients."""
    import torch

    # (optimizer, closure) or (optimizer,), closure=...
    closure = keywords.get("closure") if len(arguments) == 1 else arguments[1]
    if closure is None:
        return None
    with torch.enable_grad():
        loss = closure()
    return (arguments[0],), {**keywords, "closure": lambda: loss}
