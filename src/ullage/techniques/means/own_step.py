"""A step in the place of an optimizer's own, whoever has wrapped that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullage.techniques.applying.changes import Changes


class OwnStep:
    """Steps in an optimizer's place, whose own step is left nothing to do.

    Args:
        optimizer: any of torch's.
        step: called with all gradients in place.
    """

    def __init__(self, optimizer: Any, step: Callable[[], None]) -> None:
        self._optimizer = optimizer
        self._step = step
        self._hidden: list[tuple[dict[str, Any], list[Any]]] = []

    def apply(self, changes: Changes) -> None:
        """Takes the optimizer's place until the changes are undone."""
        changes.on_undo(self._show)
        changes.hook(self._optimizer.register_step_pre_hook(self._before))
        changes.hook(self._optimizer.register_step_post_hook(self._show))

    def _before(self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        self._show()  # what a step that failed has left hidden
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
    """The arguments of a step, with its closure called: what it computes is needed before."""
    import torch

    # (optimizer, closure) or (optimizer,), closure=...
    closure = keywords.get("closure") if len(arguments) == 1 else arguments[1]
    if closure is None:
        return None
    with torch.enable_grad():
        loss = closure()
    return (arguments[0],), {**keywords, "closure": lambda: loss}
