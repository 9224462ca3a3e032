"""What became of a plan in the processes of a run: each notes it in a file, which is read after.

note(directory, State.REFUSED, "there is no module h.3")        # in the process
read_outcome(directory, plan)                                   # in that which started it
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from ullage.techniques.made_for import MadeFor
from ullage.techniques.plan import Plan
from ullage.techniques.replaying.outcome import Replayed, read_replayed

_PREFIX = "plan-"
NEVER = "a plan never silently does less than it says"


class State(StrEnum):
    """What a process has to say of its plan."""

    WAITING = "waiting"  # for a model to be trained
    APPLIED = "applied"
    REFUSED = "refused"
    BROKEN = "broken"  # a technique met what it is not exact for, after the plan was applied


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan.

    Attributes:
        plan: the plan; None: the program was only described.
        is_applied: whether it was, in each process that trained, to the end.
        reason: why not; empty if it was.
        found: the program as it was found, with the class of every module; only where a description
            was asked for.
        is_refused: whether a process has found that the plan is not for it.
        is_broken: whether it found that only after the plan had been applied.
        replayed: what came of its replay with real numbers; None: there was none.
    """

    plan: Plan | None
    is_applied: bool
    reason: str = ""
    found: MadeFor | None = None
    is_refused: bool = False
    is_broken: bool = False
    replayed: Replayed | None = None

    @property
    def failure(self) -> str:
        """What to say where a plan was not applied, or not to the end."""
        if self.plan is None:
            return f"no plan can be made for it: {self.reason}"
        return f"the plan was not {'kept' if self.is_broken else 'applied'}: {self.reason}"


def note(directory: Path, state: State, reason: str = "", made_for: MadeFor | None = None) -> None:
    """Says what became of the plan in this process; the last word counts."""
    document = {
        "state": state,
        "reason": reason,
        "found": None if made_for is None else asdict(made_for),
    }
    path = directory / f"{_PREFIX}{os.getpid()}.json"
    written = path.with_suffix(".new")
    with suppress(OSError):  # a process that has outlived the run: nobody reads it any more
        written.write_text(json.dumps(document), encoding="utf-8")
        written.replace(path)


def read_outcome(directory: Path, plan: Plan | None) -> Outcome:
    """What the processes of a run have said of their plan."""
    if plan is not None and not plan.actions:
        return Outcome(plan, is_applied=True)
    documents = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(directory.glob(f"{_PREFIX}*.json"))
    ]
    described = next(
        (MadeFor(**document["found"]) for document in documents if document["found"]), None
    )
    broken = next(
        (document["reason"] for document in documents if document["state"] == State.BROKEN), None
    )
    refused = next(
        (document["reason"] for document in documents if document["state"] == State.REFUSED), broken
    )
    is_applied = refused is None and any(
        document["state"] == State.APPLIED for document in documents
    )
    reason = ""
    if not is_applied:
        reason = refused or (
            "no module with parameters of an optimizer was called with gradients"
            if documents
            else "the program has not come to train a model"
        )
    return Outcome(
        plan,
        is_applied,
        reason,
        described,
        is_refused=refused is not None,
        is_broken=broken is not None,
        replayed=read_replayed(directory),
    )
