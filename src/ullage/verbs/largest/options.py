"""The options of `ullage largest`, and of `ullage.largest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from ullage.ground.protocol.option import SETTINGS, Command, Count, Listener, Python, Size
from ullage.verbs.fit.options import ALLOW, FIT_BUDGET, RUNS, SEARCH, STEPS
from ullage.verbs.run.options import (
    ALLOC_CONF,
    ASSUME,
    CAPABILITY,
    DUMMY_WEIGHTS,
    GPU,
    MEMORY,
    PYTHON,
)


@dataclass(frozen=True, slots=True)
class LargestOptions:
    """A program with a size in braces, what it shall fit into, and how the size is searched.

    Attributes:
        program: its words, as for `ullage.run`; {NAME} is the place of the size.
        real_init, values: as for `ullage.run`.
        on_progress: called with a line as runs end.
        on_failure: called with the last output of the program where it failed.
    """

    program: Command
    _: KW_ONLY

    gpu: str | None = GPU("GPU to fit into (see `ullage gpus`).", "NAME", complete="gpus")
    memory: Size | None = GPU(*MEMORY)
    capability: str | None = SETTINGS(*CAPABILITY)
    budget: Size | None = GPU(*FIT_BUDGET)

    vary: str | None = SEARCH("The size; default: the one name in braces.", "NAME")
    multiple_of: Count = SEARCH("Try only multiples of N.", "N", default=1)
    allow: Literal["none", "same", "rounding", "training"] = SEARCH(
        f"{ALLOW} None: run the program as it is alone.", default="same"
    )

    python: Python | None = RUNS(*PYTHON)
    steps: int | None = RUNS(*STEPS)
    alloc_conf: str | None = RUNS(*ALLOC_CONF)
    dummy_weights: bool = RUNS.switch(DUMMY_WEIGHTS)
    assume: Sequence[str] = RUNS(*ASSUME, default=())
    real_init: bool = False
    values: bool = True
    on_progress: Listener = None
    on_failure: Listener = None
