"""The outcome of a plan in the processes of a run. Each process writes it to a file, which is read
afterwards.

    note(directory, State.REFUSED, "there is no module h.3")        # in the process
    read_outcome(directory, plan)                                   # in the process that started it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.replaying.outcome import Replayed, read_replayed
from ullage.ground.protocol.notes import read_notes, write_note

_KIND = "plan"
_NOTHING = "the program has not come to train a model"
_NOT_CALLED = "no module with parameters of an optimizer was called with gradients"
NEVER = "a plan never silently does less than it says"


class State(StrEnum):
    """The state of the plan in a process."""

    WAITING = "waiting"  # no model is trained yet; with a reason: nor is there an optimizer
    APPLIED = "applied"
    REFUSED = "refused"
    BROKEN = "broken"  # a technique refused the program after the plan was applied


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a plan.

    Attributes:
        plan: the plan; None: the program was only described.
        is_applied: whether it was applied in each process that trained, until the end.
        reason: why not; empty if it was.
        found: the description of the program, with the class of every module; only if a
            description was requested.
        is_refused: whether a process has refused the plan.
        is_broken: whether this happened after the plan was applied.
        replayed: the result of its replay with real numbers; None if there was no replay.
        rungs: the plans that a guard without a ladder takes for the program; only if a description
            was requested.
    """

    plan: Plan | None
    is_applied: bool
    reason: str = ""
    found: MadeFor | None = None
    is_refused: bool = False
    is_broken: bool = False
    replayed: Replayed | None = None
    rungs: tuple[Plan, ...] = ()

    @property
    def applied_plan(self) -> Mapping[str, Any] | None:
        """The plan in documents, and whether it was applied; None: the program was described."""
        plan = self.plan
        return (
            None
            if plan is None
            else {
                "is_applied": self.is_applied,
                "reason": self.reason,
                "summary": plan.summary,
                "document": plan,
            }
        )

    @property
    def failure(self) -> str:
        """The message if a plan was not applied, or not until the end."""
        if self.plan is None:
            return f"no plan can be made for it: {self.reason}"
        return f"the plan was not {'kept' if self.is_broken else 'applied'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Note:
    state: State
    reason: str
    program: MadeFor | None
    rungs: tuple[Plan, ...]


def note(
    directory: Path, state: State, reason: str = "", made_for: MadeFor | None = None,
    rungs: Sequence[Plan] = (),
) -> None:  # fmt: skip
    """Writes the state of the plan in this process; the last call counts."""
    write_note(directory, _KIND, _Note(state, reason, made_for, tuple(rungs)))


def read_outcome(directory: Path, plan: Plan | None) -> Outcome:
    """Reads the states that the processes of a run have written."""
    if plan is not None and not plan.actions:
        return Outcome(plan, is_applied=True)
    notes = read_notes(directory, _KIND, _Note)
    broken = next((note.reason for note in notes if note.state is State.BROKEN), None)
    refused = next((note.reason for note in notes if note.state is State.REFUSED), broken)
    is_applied = refused is None and any(note.state is State.APPLIED for note in notes)
    reason = ""
    if not is_applied:
        waiting = [note.reason for note in notes] or [_NOTHING]
        reason = refused or min(waiting) or _NOT_CALLED
    return Outcome(
        plan,
        is_applied,
        reason,
        next((note.program for note in notes if note.program is not None), None),
        is_refused=refused is not None,
        is_broken=broken is not None,
        replayed=read_replayed(directory),
        rungs=next((note.rungs for note in notes if note.rungs), ()),
    )
