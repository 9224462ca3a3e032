"""How a process under `ullage exec --guard` ended, where an exception that nobody caught ended it:
it says so to its supervisor, which knows from there whether memory ran out.

    start()                                 # in the process, before its first line
    find_failure(directory)                 # in the supervisor
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.act.guard.failure import is_out_of_memory, shorten
from ullage.ground.protocol.variables import GUARD
from ullage.players.inside.program_end import watch_exceptions

if TYPE_CHECKING:
    from ullage.log.record_schema import ExitFields

_KIND = "end"
# Raised where a process that was started has failed. What ended that one is in its own note, but
# for a ProcessRaisedException, which torch.multiprocessing raises with the other's traceback.
_OF_OTHERS = ("CalledProcessError", "ChildFailedError", "ProcessExitedException")
_IN_TRACEBACK = "OutOfMemoryError: CUDA out of memory"


@dataclass(frozen=True, slots=True)
class EndNote:
    """The exception that ended a process.

    Attributes:
        at_ns: when, by the clock that all processes of a machine share.
        rank: of the process, as a launcher has set it; None: it has none.
        kind: the class of the exception.
        text: what it said, in short.
        is_out_of_memory: whether it says that a GPU is out of memory.
    """

    at_ns: int
    rank: str | None
    kind: str
    text: str
    is_out_of_memory: bool


class _Process:
    def __init__(self, directory: Path, rank: str | None) -> None:
        self.exit: ExitFields = {
            "kind": "returned", "exception": None, "message": None, "where": None, "code": 0,
        }  # fmt: skip
        self._directory, self._rank = directory, rank

    def note_exception(self, error: BaseException) -> None:
        """Writes the note."""
        self.exit["kind"] = "exception"
        torch, message = sys.modules.get("torch"), str(error)
        note = EndNote(
            time.monotonic_ns(), self._rank, type(error).__name__, shorten(message),
            (torch is not None and is_out_of_memory(torch, error)) or _IN_TRACEBACK in message,
        )  # fmt: skip
        from ullage.ground.protocol.notes import write_note  # of use to a process that fails alone

        write_note(self._directory, _KIND, note)


def start() -> None:
    """Has the exception noted that ends this process."""
    watch_exceptions(_Process(Path(os.environ[GUARD]), os.environ.get("RANK")))


def find_failure(directories: Sequence[Path]) -> EndNote | None:
    """The failure that ended a program, of the notes of all its processes; None: no exception did.

    Of one rank it is what came last: it may have lived on after a process that it had started. Of
    several ranks it is what ran out of memory, else what came first: the others lose their
    connection to it.
    """
    from ullage.ground.protocol.notes import read_notes

    notes = [note for directory in directories for note in read_notes(directory, _KIND, EndNote)]
    own = [note for note in notes if note.kind not in _OF_OTHERS] or notes
    ranks = [note for note in own if note.rank is not None] or own
    last = {note.rank: note for note in sorted(ranks, key=lambda note: note.at_ns)}
    return min(
        last.values(), key=lambda note: (not note.is_out_of_memory, note.at_ns), default=None
    )
