"""The closure that a step of an optimizer is called with, as Lightning does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


class WatchedClosure:
    """A closure, of which one notes whether it has run.

    Args:
        closure: computes the loss and its gradients.
        take: called after it, for what the step begins with.

    Attributes:
        result: what it returned last.
        before: what `take` returned last.
    """

    def __init__(self, closure: Callable[[], Any], take: Callable[[], Any]) -> None:
        self.result: Any = None
        self.before: Any = None
        self._closure = closure
        self._take = take
        self._num_begun = self._num_ended = 0

    def __call__(self) -> Any:
        self._num_begun += 1
        self.result = self._closure()
        self.before = self._take()
        self._num_ended += 1
        return self.result

    @property
    def has_run_once(self) -> bool:
        """True if it has been called once, and has returned."""
        return (self._num_begun, self._num_ended) == (1, 1)


def watch_closure(
    optimizer: Any,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    take: Callable[[], Any],
) -> tuple[WatchedClosure | None, tuple[Any, ...], dict[str, Any]]:
    """The closure among the arguments of a step, and the arguments with it watched. None: there is
    none, or the step may call it several times.
    """
    values = {**dict(zip(("closure",), arguments, strict=False)), **keywords}
    closure = values.get("closure")
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    is_optional = parameter is not None and parameter.default is None
    if not callable(closure) or not is_optional or len(arguments) > 1:
        return None, arguments, dict(keywords)
    watched = WatchedClosure(closure, take)
    return watched, (), {**values, "closure": watched}
