"""The options of `ullage serve`, and of `ullage.serve_traffic`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, TypeAlias

from ullage.ground.protocol.option import SETTINGS, Command, HelpSection, Python
from ullage.ground.protocol.plain import From, Mark, Misfit
from ullage.verbs.run.options import PYTHON

ENGINE, REPLAY = HelpSection("Engine"), HelpSection("Replay")
_MAX_LOAD = 1000

# What the verbs of servers have in common is said once.
TRAFFIC = (
    "Trace, or a generator: poisson:rate=2,prompt=1000,output=200,duration=10m.",
    "FILE|KIND:...",
)
SLO = ("Objective, for example ttft=1s,tpot=50ms.", "TEXT")


def read_loads(text: str) -> tuple[float, ...]:
    """Reads "0.5,1,2": factors of the traffic's rate, each once."""
    loads: list[float] = []
    for part in text.split(","):
        try:
            load = float(part)
        except ValueError:
            load = 0.0
        if not 0 < load <= _MAX_LOAD or load in loads:
            raise Misfit(
                f"{text!r}: found {part!r}; expected different factors of the traffic's rate, "
                f"above 0 and at most {_MAX_LOAD:,}, such as 0.5,1,2"
            )
        loads.append(load)
    return tuple(loads)


Loads: TypeAlias = Annotated[Sequence[float], From(str), read_loads]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """An engine, and the traffic that it is sent.

    Attributes:
        program: `vllm serve MODEL ...`; the model is found as by `ullage.capacity`.
        stdout_to_stderr: the engine's own output goes to stderr.
    """

    program: Command
    _: KW_ONLY
    gpu: str | None = ENGINE("GPU (see `ullage gpus`); default: an H100.", "NAME", complete="gpus")
    traffic: str | None = ENGINE(*TRAFFIC)
    slo: str | None = ENGINE(*SLO)
    python: Python | None = ENGINE(*PYTHON)
    loads: Loads = REPLAY(
        "Also send it at these multiples of its rate, for example 0.5,2,4.", "LIST", default=()
    )
    host_time: str | None = SETTINGS(
        "Time of the host: measured, none, or for example launch=40us,http=1ms.", "TEXT"
    )
    cached: bool = REPLAY.switch("Start twice, and serve with the compile cache of the first.")
    stdout_to_stderr: Annotated[bool, Mark.NO_KEY] = False
