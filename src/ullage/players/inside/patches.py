"""Functions in the place of other libraries', which can be taken out again.

patches.replace(torch.autograd, "_engine_run_backward", watched)
patches.undo()                  # the very objects that were there are there again
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_ABSENT = object()


def around(
    run: Callable[..., Any],
    before: Callable[..., object] | None = None,
    after: Callable[..., object] | None = None,
) -> Callable[..., Any]:
    """A function; `before` gets its arguments first, `after` when it has ended, however it did."""

    @functools.wraps(run)
    def run_between(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        try:
            return run(*args, **kwargs)
        finally:
            if after is not None:
                after(*args, **kwargs)

    return run_between


class Patches:
    """The attributes that are replaced, in their order."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, str, object, object]] = []
        self._calls: list[Callable[[], None]] = []

    def on_undo(self, call: Callable[[], None]) -> None:
        """Calls this before everything is put back: it calls off what is still to be replaced."""
        self._calls.append(call)

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Sets an attribute of a module, a class or an object."""
        self._rows.append((owner, name, vars(owner).get(name, _ABSENT), value))
        setattr(owner, name, value)

    def undo(self) -> list[str]:
        """Puts everything back; returns the names of what others have replaced since, which stays:
        what they put there may call ours.
        """
        for call in self._calls:
            call()
        self._calls.clear()
        left: list[str] = []
        for owner, name, before, ours in reversed(self._rows):
            if vars(owner).get(name, _ABSENT) is not ours:
                left.append(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._rows.clear()
        return left

    @property
    def places(self) -> list[tuple[Any, str, object]]:
        """Each attribute that is replaced, with what was there; None where nothing was."""
        return [
            (owner, name, None if before is _ABSENT else before)
            for owner, name, before, _ in self._rows
        ]
