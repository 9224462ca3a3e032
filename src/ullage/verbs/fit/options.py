"""The options of `ullage fit`, and of `ullage.fit` and `find_ladder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from ullage.ground.protocol.option import (
    SETTINGS,
    Command,
    File,
    HelpSection,
    Listener,
    Python,
    Size,
)
from ullage.ground.protocol.plain import From, Misfit, NumberRange
from ullage.verbs.run.options import (
    ALLOC_CONF,
    ASSUME,
    CAPABILITY,
    DUMMY_WEIGHTS,
    GPU,
    MEASURED,
    MEMORY,
    PYTHON,
)

SEARCH, RUNS = HelpSection("Search"), HelpSection("Runs")

# What `ullage largest` has too is said once.
ALLOW = (
    "What techniques may change: memory only (same, the default), rounding too, or the "
    "training itself."
)
FIT_BUDGET = ("Memory that the program may use; default: all.", "SIZE")
STEPS = ("Training steps of each run; default: 3.", "N")


class Workers(Protocol):
    """An executor, such as those of concurrent.futures."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Has a worker call the function; a future of what it returns."""


def _read_ladder(text: str) -> Mapping[str, Sequence[int]]:
    variable, _, rest = text.partition("=")
    words = [word.strip() for word in rest.split(",")]
    if not all(word.isdecimal() for word in words):
        raise Misfit(
            f"{text!r} is not possible; write the variable and its sizes, from small to large, "
            "such as length=512,1024,2048"
        )
    return {variable.strip(): [*map(int, words)]}


Ladder: TypeAlias = Annotated[Mapping[str, Sequence[int]], From(str), _read_ladder]


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The memory that a program shall fit into, and the search for a plan.

    Attributes:
        program: its words, as for `ullage.run`.
        real_init, values: as for `ullage.run`.
        on_progress: called with a line as runs end.
        on_failure: called with the last output of the program where it failed unchanged.
    """

    program: Command
    _: KW_ONLY

    gpu: str | None = GPU("GPU to fit into (see `ullage gpus`).", "NAME", complete="gpus")
    gpus: int = GPU("Train on N such GPUs.", "N", default=1)
    memory: Size | None = GPU(*MEMORY)
    capability: str | None = SETTINGS(*CAPABILITY)
    budget: Size | None = GPU(*FIT_BUDGET)

    allow: Literal["same", "rounding", "training"] = SEARCH(ALLOW, default="same")
    objective: Literal["time", "cost", "memory"] = SEARCH(
        "The fastest plan that fits (default), the cheapest, or the one that needs least memory.",
        default="time",
    )
    price: float | None = SEARCH(
        "Price of a GPU-hour: what the steps and tokens of each plan cost.", "DOLLARS"
    )
    ladder: Ladder | None = SEARCH(
        "Find the plans of a guard instead, each proved for sizes: length=512,1024,2048.",
        "NAME=SIZES",
    )
    smallest_gpu: bool = SEARCH.switch("Also find the smallest GPU that fits.")
    minutes: Annotated[float, NumberRange(0, is_open=True)] | None = SEARCH(
        "Stop the search after N minutes and report the best plan so far; default: 15.", "N"
    )

    python: Python | None = RUNS(*PYTHON)
    steps: int | None = RUNS(*STEPS)
    alloc_conf: str | None = RUNS(*ALLOC_CONF)
    dummy_weights: bool = RUNS.switch(DUMMY_WEIGHTS)
    assume: Sequence[str] = RUNS(*ASSUME, default=())
    measured: File | None = RUNS(*MEASURED)
    executor: Annotated[Workers | str | None, From(str)] = SETTINGS(
        "Have the workers of an executor make the runs: a function that makes it.", "MODULE:NAME"
    )
    real_init: bool = False
    values: bool = True
    on_progress: Listener = None
    on_failure: Listener = None
