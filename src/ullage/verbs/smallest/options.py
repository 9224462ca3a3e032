"""The options of `ullage smallest`, and of `ullage.smallest`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, TypeAlias

from ullage.ground.protocol.option import OPTIONS, SETTINGS, Command, Listener, Names, Python
from ullage.ground.protocol.plain import From, Mark, Misfit
from ullage.verbs.run.options import PYTHON
from ullage.verbs.serve.options import SLO, TRAFFIC


def _read_percent(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise Misfit(f"is {text!r}; expected per cent, for example 99%") from None


Percent: TypeAlias = Annotated[float, From(str), _read_percent]


@dataclass(frozen=True, slots=True)
class SmallestOptions:
    """An engine, its traffic and the objective, and which servers are searched.

    Attributes:
        program: `vllm serve MODEL ...`, as for `ullage.serve_traffic`.
        on_progress: called with a line for each GPU and each run of the search.
        runner: what runs a candidate's command; None: `ullage.serve_traffic`.
    """

    program: Command
    _: KW_ONLY
    gpu: str | None = OPTIONS(
        "GPUs to search (see `ullage gpus`); default: six for servers.", "NAME[,...]",
        complete="gpus",
    )  # fmt: skip
    traffic: str | None = OPTIONS(*TRAFFIC)
    slo: str | None = OPTIONS(*SLO)
    target: Percent = SETTINGS(
        "Requests that must meet the objective; default: 99%.", "PERCENT", default=0.99
    )
    allow: Names = OPTIONS(
        "fp8-cache, fp8-weights, which change the model's numbers.", "NAMES", default=()
    )
    python: Python | None = OPTIONS(*PYTHON)
    on_progress: Listener = None
    runner: Annotated[Callable[[Any, tuple[str, ...]], Any] | None, Mark.NO_KEY] = None
