"""A scenario with a server: its command, its traffic and its objective, run in virtual time.

[scenario.api]
serve = "vllm serve llama-3.1-8b --max-model-len 16384"
traffic = "azure-conv:rate=4,duration=5m"      # or a file
slo = "ttft=1s,tpot=50ms"
goodput = "99%"

read_serving(section)               # None where a scenario has no `serve`
run_served(case, python)            # the run, and the figures that the lock has of it
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ullage.configuration.sections import Section
from ullage.errors import EnvironmentProblem, SpecError
from ullage.gate.lock import ServedFigures
from ullage.gate.scenario import Case, Serving
from ullage.serve.measures import measure
from ullage.serve.run import check_command, serve
from ullage.serve.slo import parse_slo
from ullage.serve.traffic import load_traffic
from ullage.serve.traffic.spec import is_generator

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.serve.outcome import Outcome

SERVE: Final = "serve"
_EXAMPLE: Final = "vllm serve llama-3.1-8b --max-model-len 16384"
_ELSEWHERE: Final = (
    "command", "requests", "steps", "world_size", "local_world_size", "rank", "ranks", "gpus",
    "memory", "capability", "dummy_weights", "real_init", "values", "assume", "alloc_conf",
)  # fmt: skip


class ServedCase(NamedTuple):
    """A server's run.

    Attributes:
        report: of the memory; None where the engine did not start.
        figures: of the cache and the requests; None likewise.
        problem: why it did not start; "": it did.
        engine: its name and version.
    """

    report: RunReport | None
    figures: ServedFigures | None
    problem: str = ""
    engine: str = ""


def read_serving(section: Section) -> Serving | None:
    """What the scenario says of a server."""
    if SERVE not in section.names:
        for key in ("traffic", "slo", "goodput", "least_tokens"):
            if key in section.names:
                raise section.error(key, f'is for a server; add serve = "{_EXAMPLE}"')
        return None
    for key in _ELSEWHERE:
        if key in section.names:
            raise section.error(key, "does not go with serve; leave it out")
    traffic, slo = section.text("traffic", "trace.csv"), section.text("slo", "ttft=1s,tpot=50ms")
    if traffic is None:
        raise section.error(
            "traffic", 'is missing; add a trace or a generator: "poisson:rate=2,prompt=1000,'
            'output=200"',
        )  # fmt: skip
    goodput = section.text("goodput", "99%")
    if goodput is not None and slo is None:
        raise section.error("goodput", 'needs an objective; add slo = "ttft=1s,tpot=50ms"')
    return Serving(traffic, slo, _share(section, goodput), section.number("least_tokens", 1))


def _share(section: Section, text: str | None) -> float:
    try:
        share = 0.99 if text is None else float(text.removesuffix("%").strip()) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise section.error("goodput", f"is {text!r}; expected per cent, such as 99%")
    return share


def serve_words(section: Section) -> tuple[str, ...]:
    """The engine's command."""
    value = section.words(SERVE) or []
    if isinstance(value, list):
        return tuple(value)
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise section.error(SERVE, f"cannot be split into words: {error}") from None


def check_serving(case: Case, section: Section) -> None:
    """Refuses what can be known to be wrong before anything runs."""
    serving = case.serving
    if serving is None:
        return
    if case.gpu is None:
        raise section.error("gpu", 'is missing; a server needs one, such as: gpu = "h100-80gb"')
    for key, check in (
        (SERVE, lambda: check_command(case.command)),
        ("slo", lambda: None if serving.slo is None else parse_slo(serving.slo)),
        ("traffic", lambda: load_traffic(_traffic_text(case))),
    ):
        try:
            check()
        except SpecError as error:
            raise section.error(key, f": {error}") from None


def _traffic_text(case: Case) -> str:
    """The traffic as `load_traffic` reads it: a file is beside the scenario."""
    text = "" if case.serving is None else case.serving.traffic
    return text if is_generator(text) else str(Path(case.scenario.directory) / text)


def run_served(case: Case, python: str | None) -> ServedCase:
    """Runs the server with its traffic."""
    serving = case.serving
    if serving is None or case.gpu is None:
        raise ValueError(f"{case.name} is no server")
    objective = None if serving.slo is None else parse_slo(serving.slo)
    try:
        served = serve(
            case.command, load_traffic(_traffic_text(case)), gpu=case.gpu, python=python,
            stdout_to_stderr=True,
        )  # fmt: skip
    except EnvironmentProblem as error:
        return ServedCase(None, None, str(error))
    outcome = served.outcome
    goodput = measure(outcome, objective).classes[0].goodput_frac
    number = len(outcome.traffic)
    # Without an objective a request is good that has its answer.
    good = _num_answered(outcome) if goodput is None else round(goodput * number)
    engine = f"{outcome.engine.name} {outcome.engine.version}"
    figures = ServedFigures(outcome.engine.kv_cache_tokens, good, number)
    return ServedCase(served.report, figures, engine=engine)


def _num_answered(outcome: Outcome) -> int:
    return int(outcome.is_answered.sum())
