"""The program of a run, as its parent saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ullage.ground.protocol.plain import As, Mark, Only
from ullage.players.inside.requests.requests import Noted

if TYPE_CHECKING:
    from ullage.act.techniques.applying.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Program:
    """The program that was run and how it ended, as its parent saw it.

    Attributes:
        argv: the words after `--`.
        pid: of the process that was started.
        exit_code: of that process; 128 + the number of the signal that ended it.
        wall_s: from its start to its end.
        was_interrupted: the run was asked to stop: Ctrl-C, SIGTERM or SIGHUP.
        unrecorded: the processes that used a device and left no record of it, each with the reason
            where it gave one.
        left_running: the processes that had to be ended after the program, with their commands.
        not_kept: what of the run could not be written, and why.
        plan: what became of the plan that it ran under; None where it ran under none.
        failed_request: the first of the requests replayed against it that was not answered.
        remarks: what the reader is to know of how it was found, or of what it used.
        was_killed: it was ullage that killed it, as it went on after a signal.
        timed_out_after_s: the time that it was given, where it took longer and was ended for that.
    """

    argv: Annotated[tuple[str, ...], As("program")]
    pid: Annotated[int, Mark.NO_KEY]
    exit_code: int
    wall_s: float
    was_interrupted: Annotated[bool, Mark.NO_KEY] = False
    unrecorded: Annotated[tuple[tuple[int, str], ...], Mark.NO_KEY] = ()
    left_running: Annotated[tuple[tuple[int, str], ...], Mark.NO_KEY] = ()
    not_kept: Annotated[tuple[str, ...], Mark.NO_KEY] = ()
    failed_request: Annotated[Noted | None, Mark.NO_KEY] = None
    plan: Annotated[Outcome | None, Only("applied_plan")] = None
    remarks: Annotated[tuple[str, ...], Mark.NO_KEY] = ()
    timed_out_after_s: Annotated[float | None, Mark.NO_KEY] = None
    was_killed: Annotated[bool, Mark.NO_KEY] = False
