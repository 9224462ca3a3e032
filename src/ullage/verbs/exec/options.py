"""The options of `ullage exec`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ullage.ground.protocol.option import OPTIONS, Command, Listener, Names, Python, Size, Words
from ullage.verbs.run.options import GUARD, PYTHON, RESUME, Plan


@dataclass(frozen=True, slots=True)
class ExecOptions:
    """Under what a program runs on the GPU of this machine.

    Attributes:
        program: its words, as they would follow `ullage exec --`.
        say: called with a line for each start that ran out of memory, and where nothing was capped.
    """

    program: Command
    _: KW_ONLY
    plan: Plan | None = OPTIONS("Plan from `ullage fit`.", "FILE")
    guard: Names | None = OPTIONS(*GUARD, bare="")
    resume: Words = OPTIONS(*RESUME, default=())
    cap: Size | None = OPTIONS(
        "Memory of a GPU that each process may take, its context included.", "SIZE"
    )
    python: Python | None = OPTIONS(*PYTHON)
    say: Listener = None
