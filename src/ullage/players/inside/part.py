"""A recorder is a list of parts, each with its place in the record and its hooks.

A recorder tells its parts, in their order, what happens: torch is there, a device is initialised, a
phase begins, a step has ended, memory ran out, the record is made. They are taken out in reverse
order. A part that raises is counted in the basis of the record; the program never sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullage.ground.protocol.run import RunVariables
    from ullage.players.inside.patches import Patches


class Part:
    """One thing that is noted; it takes up what it cares about."""

    def install(self, patches: Patches) -> None:
        """torch has been imported: puts in what is undone with the patches, or by `remove`."""

    def begin(self) -> None:
        """A device is initialised."""

    def note_mark(self, kind: str) -> None:
        """A phase begins, or has ended."""

    def end_step(self, count: int) -> None:
        """This many steps have ended."""

    def note_oom(self) -> None:
        """An allocation has failed."""

    def note_exception(self, error: BaseException) -> None:
        """An exception ends the program."""

    def prepare(self) -> None:
        """The record is about to be made."""

    def fields(self) -> dict[str, Any]:
        """Its part of the record; where another part has a table of that name, both are one."""
        return {}

    def device_fields(self, index: int) -> dict[str, Any]:
        """Its part of the record of a device."""
        return {}

    def remarks(self) -> list[str]:
        """The remarks that a reader of the record is to know."""
        return []

    def go_on(self) -> None:
        """The record is made, and the program goes on."""

    def go_on_as(self, run: RunVariables) -> None:
        """This process is a copy of another, and a run of its own from here on."""

    def close(self) -> None:
        """The last record is about to be made."""

    def remove(self) -> None:
        """Takes out what it has put in, but for the patches."""

    def leave(self) -> None:
        """This is a forked process, which is not recorded."""
        self.remove()
