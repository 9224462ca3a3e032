"""The options of `ullage serve`, and of `ullage.serve_traffic` and `ullage.search_server`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, TypeAlias

from ullage.protocol.options.option import Command, HelpSection, Listener, Names, Python, Size
from ullage.protocol.options.run import PYTHON
from ullage.protocol.plain import From, Mark, Misfit

ENGINE, REPLAY = HelpSection("Engine"), HelpSection("Replay")
SEARCH, FORECAST = HelpSection("Search"), HelpSection("Forecast")
_MAX_LOAD = 1000


def _read_percent(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise Misfit(f"is {text!r}; expected per cent, for example 99%") from None


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


Percent: TypeAlias = Annotated[float, From(str), _read_percent]
Loads: TypeAlias = Annotated[Sequence[float], From(str), read_loads]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """An engine, the traffic that it is sent, and what is asked.

    Attributes:
        program: `vllm serve MODEL ...`; the model is found as by `ullage.estimate_serving`.
        stdout_to_stderr: the engine's own output goes to stderr.
        on_progress: called with a line for each GPU and each run of a search.
        runner: what runs a candidate's command in a search; None: `ullage.serve_traffic`.
    """

    program: Command
    _: KW_ONLY
    gpu: str | None = ENGINE(
        "GPU (see `ullage gpus`); default: an H100. With --search: several, with commas.", "NAME",
        complete="gpus",
    )  # fmt: skip
    traffic: str | None = ENGINE(
        "Trace, or a generator: poisson:rate=2,prompt=1000,output=200,duration=10m.",
        "FILE|KIND:...",
    )
    slo: str | None = ENGINE("Objective, for example ttft=1s,tpot=50ms.", "TEXT")
    python: Python | None = ENGINE(*PYTHON)
    loads: Loads = REPLAY(
        "Also send it at so many times its rate, for example 0.5,2,4.", "LIST", default=()
    )
    host_time: str | None = REPLAY(
        "Time of the host: measured, none, or for example launch=40us,http=1ms.", "TEXT"
    )
    cached: bool = REPLAY.switch("Start twice, and serve with the compile cache of the first.")
    search: bool = SEARCH.switch("Find the smallest server that holds the objective.")
    target: Percent = SEARCH(
        "With --search: requests that must meet it; default: 99%.", "PERCENT", default=0.99
    )
    allow: Names = SEARCH(
        "With --search: fp8-cache, fp8-weights, which change the model's numbers.", "NAMES",
        default=(),
    )  # fmt: skip
    forecast: bool = FORECAST.switch("Forecast preemptions without the engine.")
    cache: Size | None = FORECAST("With --forecast: bytes of the cache on each GPU.", "SIZE")
    stdout_to_stderr: Annotated[bool, Mark.NO_KEY] = False
    on_progress: Listener = None
    runner: Annotated[Callable[[Any, tuple[str, ...]], Any] | None, Mark.NO_KEY] = None
