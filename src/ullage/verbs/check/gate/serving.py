"""A scenario with a server: its command, its traffic and its objective, run in virtual time.

[scenario.api]
serve = "vllm serve llama-3.1-8b --max-model-len 16384"
traffic = "azure-conv:rate=4,duration=5m"      # or a file
slo = "ttft=1s,tpot=50ms"
goodput = "99%"

check_serving(case)                 # what can be known to be wrong before anything runs
run_served(case, python)            # the run, and the figures that the lock has of it
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ullage.ground.errors import EnvironmentProblem, SpecError
from ullage.ground.protocol.plain import Misfit
from ullage.operate.serve.measures import measure
from ullage.operate.serve.run import check_command, serve
from ullage.operate.serve.slo import parse_slo
from ullage.operate.serve.traffic import load_traffic
from ullage.operate.serve.traffic.spec import is_generator
from ullage.verbs.check.gate.lock import ServedFigures
from ullage.verbs.check.gate.scenario import Case

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.operate.serve.outcome import Outcome

SERVE: Final = "serve"


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


def check_serving(case: Case) -> None:
    """Refuses what can be known to be wrong before anything runs."""
    serving = case.scenario.serving
    if serving is None:
        return
    if case.gpu is None:
        raise Misfit('is missing; a server needs one, such as: gpu = "h100-80gb"', "gpu")
    for key, check in (
        (SERVE, lambda: check_command(case.scenario.command)),
        ("slo", lambda: None if serving.slo is None else parse_slo(serving.slo)),
        ("traffic", lambda: load_traffic(_traffic_text(case))),
    ):
        try:
            check()
        except SpecError as error:
            raise Misfit(f": {error}", key) from None


def _traffic_text(case: Case) -> str:
    """The traffic as `load_traffic` reads it: a file is beside the scenario."""
    text = "" if case.scenario.serving is None else case.scenario.serving.traffic
    return text if is_generator(text) else str(Path(case.scenario.directory) / text)


def run_served(case: Case, python: str | None) -> ServedCase:
    """Runs the server with its traffic."""
    serving = case.scenario.serving
    if serving is None or case.gpu is None:
        raise ValueError(f"{case.name} is not a server")
    objective = None if serving.slo is None else parse_slo(serving.slo)
    try:
        served = serve(
            case.scenario.command, load_traffic(_traffic_text(case)), gpu=case.gpu, python=python,
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
