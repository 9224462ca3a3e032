"""Modules that a plan of a rung runs a second time, in backward: once, as far as their state goes.

The plan restores attributes of the module itself (act/techniques/means/rerun.py). What its hooks
and its functions change elsewhere, as a hook that counts, is taken back here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ullage.act.guard.state.reach import Reach
from ullage.act.guard.state.state import hooks_of_all_modules


class SecondRuns:
    """The contexts around second runs of modules."""

    def __init__(self) -> None:
        self._reaches: dict[Any, Reach] = {}  # by module

    @contextmanager
    def undone(self, module: Any) -> Iterator[None]:
        """Takes back, at its end, what is changed within it.

        Raises:
            GuardError: something was changed that cannot be put back.
        """
        reach = self._reaches.get(module)
        if reach is None:
            roots = {"module": module, "hooks of all modules": hooks_of_all_modules()}
            reach = self._reaches[module] = Reach(roots, [*module.parameters()], {})
        reach.take(None, {})
        try:
            yield
        finally:
            reach.restore()
