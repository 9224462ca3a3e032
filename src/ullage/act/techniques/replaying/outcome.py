"""The result of a replay with real numbers: the process that replays writes it, the search reads
it.

    write_replayed(directory, Replayed(...))    # in the process
    read_replayed(directory)                    # in the process that started it; None: no result
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ullage.ground.protocol.notes import read_notes, write_note
from ullage.ground.protocol.plain import figure

_KIND = "replayed"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay.

    Attributes:
        done: the replayed actions, for people: "12 of 12 Block", "optimizer_offload of AdamW".
        not_done: the actions that were not replayed, and why.
        reduced: how the replay differs from the program: "batch 2, length 16".
        precision: the dtype of its numbers: "float64"; empty: nothing was replayed.
        difference: how the training with the plan differs from that without; empty: not at all.
        loss_diff: the largest difference of a loss, relative to it.
        gradient_diff, parameter_diff: the largest difference of a gradient and of a parameter
            after the steps, relative to the largest of its tensor.
        num_steps: the number of training steps.
        seconds: the duration of the replay.
    """

    done: tuple[str, ...] = ()
    not_done: Mapping[str, str] = field(default_factory=dict)
    reduced: str = ""
    precision: str = ""
    difference: str = ""
    loss_diff: float = 0.0
    gradient_diff: float = 0.0
    parameter_diff: float = 0.0
    num_steps: int = 0
    seconds: float = 0.0

    @figure
    def is_same(self) -> bool:
        """True if all replayed actions leave the training unchanged."""
        return not self.difference

    @property
    def text(self) -> str:
        """For people, in a line."""
        clauses = []
        if self.done:
            how = f", in {self.precision}" + (f", {self.reduced}" if self.reduced else "")
            clauses.append(f"replayed with real numbers: {', '.join(self.done)}{how}")
        if self.difference:
            clauses.append(f"differs: {self.difference}")
        clauses += [f"not replayed: {name}, because {why}" for name, why in self.not_done.items()]
        return "; ".join(clauses) or "nothing in it changes the arithmetic"


def write_replayed(directory: Path, replayed: Replayed) -> None:
    """Writes the result of this process; the last call counts."""
    write_note(directory, _KIND, replayed)


def read_replayed(directory: Path) -> Replayed | None:
    """Reads the results of the processes of a run; of several, the first with a difference."""
    replayeds = read_notes(directory, _KIND, Replayed)
    return next(
        (replayed for replayed in replayeds if not replayed.is_same), next(iter(replayeds), None)
    )


def error_text(error: BaseException) -> str:
    """The kind of an error of the program, and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
