"""The result of a replay with real numbers: the process that replays writes it, the search reads
it.

    write_replayed(directory, Replayed(...))    # in the process
    read_replayed(directory)                    # in the process that started it; None: no result
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_PREFIX = "replayed-"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay showed.

    Attributes:
        done: what was replayed, for people: "12 of 12 Block", "optimizer_offload of AdamW".
        not_done: what was not, and why.
        reduced: how the replay differs from the program: "batch 2, length 16".
        precision: of its numbers: "float64"; empty: nothing was replayed.
        difference: where the treated training differs from the untreated; empty: nowhere.
        loss_diff: the largest difference of a loss, relative to it.
        gradient_diff, parameter_diff: the largest difference of a gradient and of a parameter
            after the steps, relative to the largest of its tensor.
        num_steps: how many were trained.
        seconds: how long it took.
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

    @property
    def is_same(self) -> bool:
        """Whether nothing that was replayed differs."""
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

    @property
    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"is_same": self.is_same, **asdict(self), "done": [*self.done]}


def write_replayed(directory: Path, replayed: Replayed) -> None:
    """Says what this process has found; the last word counts."""
    path = directory / f"{_PREFIX}{os.getpid()}.json"
    written = path.with_suffix(".new")
    with suppress(OSError):
        written.write_text(json.dumps(asdict(replayed)), encoding="utf-8")
        written.replace(path)


def read_replayed(directory: Path) -> Replayed | None:
    """What the processes of a run have found; of several, the first that differs."""
    replayeds = [
        Replayed(**{**document, "done": tuple(document["done"])})
        for path in sorted(directory.glob(f"{_PREFIX}*.json"))
        for document in [json.loads(path.read_text(encoding="utf-8"))]
    ]
    return next(
        (replayed for replayed in replayeds if not replayed.is_same), next(iter(replayeds), None)
    )
