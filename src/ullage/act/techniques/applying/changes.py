"""The changes in a running program, recorded so that all of them can be undone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from typing import Any

_ABSENT = object()


class Changes:
    """Changes in their order; they are undone in reverse, each even if another fails.

    with Changes() as changes:
        changes.set(module, "forward", mine)
        changes.set_item(group, "foreach", False)
        changes.hook(tensor.register_hook(note))
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute; the undo restores the previous value, or removes the attribute.

        If something else has set it since then, the undo warns and restores the old value anyway.
        """
        had = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._stack.callback(_put_back, owner, name, vars(owner).get(name), had)

    def set_item(self, owner: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Sets an item of a mapping, and undoes it as `set` does."""
        had = owner.get(key, _ABSENT)
        owner[key] = value
        self._stack.callback(_put_item_back, owner, key, had)

    def hook(self, handle: Any) -> None:
        """Records the handle of a torch hook, which the undo removes."""
        self._stack.callback(handle.remove)

    def on_undo(self, function: Callable[..., object], *arguments: Any) -> None:
        """Registers a function to call when the changes are undone."""
        self._stack.callback(function, *arguments)

    def undo(self) -> None:
        """Undoes all changes; a second call does nothing."""
        self._stack.close()

    def keep(self) -> None:
        """Makes the changes permanent; `undo` does nothing from now on."""
        self._stack.pop_all()


def _put_back(owner: Any, name: str, was_set: Any, had: Any) -> None:
    if vars(owner).get(name, _ABSENT) is not was_set:
        warnings.warn(
            f"{name!r} of a {type(owner).__name__} was changed while a plan was applied; the "
            "value from before the plan is restored",
            stacklevel=2,
        )
    if had is not _ABSENT:
        setattr(owner, name, had)
    elif name in vars(owner):
        delattr(owner, name)


def _put_item_back(owner: MutableMapping[Any, Any], key: Any, had: Any) -> None:
    if had is not _ABSENT:
        owner[key] = had
    else:
        owner.pop(key, None)
