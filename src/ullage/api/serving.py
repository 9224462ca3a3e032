"""Serving: from a configuration (`ullage estimate --serve`, `ullage.estimate_serving`), and with a
real engine on the phantom, in virtual time (`ullage serve`, `ullage.serve_traffic`).

    answer = ullage.estimate_serving("llama-3.1-8b", gpu="l40s", context=32768, users=4)
    answer.fits, answer.estimate.concurrency

    run = ullage.serve_traffic(["vllm", "serve", "llama-3.1-8b"], traffic="azure-conv:duration=1h",
                               gpu="h100-80gb", python="vllm/bin/python", slo="ttft=1s,tpot=50ms")
    print(run.text())
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ullage.errors import SpecError
from ullage.estimate.term import ESTIMATE_SCHEMA
from ullage.models.config import Config
from ullage.models.find import Found, find_config
from ullage.protocol.options.estimate import ServingOptions
from ullage.protocol.options.option import options_of, takes
from ullage.protocol.options.serve import ServeOptions
from ullage.protocol.plain import As, Mark, document_of, figure
from ullage.units import parse_bytes

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.estimate.serving.gpu_ranking import ServingRow
    from ullage.estimate.serving.knobs import ServingKnob
    from ullage.estimate.serving.serving_plan import ServingEstimate, ServingPlan
    from ullage.estimate.time.serving import ServingTime
    from ullage.serve.measures import Measures
    from ullage.serve.outcome import Outcome
    from ullage.serve.report import ServeReport


GPU = "h100-80gb"
"""The GPU of a server where none is named."""


@dataclass(frozen=True, slots=True)
class ServingAnswer:
    """What serving a model needs, from the configuration alone.

    Attributes:
        estimate: all that was found.
        source: where the model's configuration is from; "" where it is the user's own file.
        gpus: the catalogue, those on which the users fit first; empty where it was not asked.
        knobs: what would leave more room, the best first; empty where it was not asked.
        time: of a prompt and of a token; None where it was not asked.
    """

    SCHEMA: ClassVar[str] = ESTIMATE_SCHEMA

    estimate: Annotated[ServingEstimate, Mark.FLAT]
    source: Annotated[str, Mark.NO_KEY]
    gpus: Annotated[tuple[ServingRow, ...], As("which_gpu")] = ()
    knobs: tuple[ServingKnob, ...] = ()
    time: ServingTime | None = None

    @property
    def fits(self) -> bool | None:
        """Of its verdict; None: it may fit, or there is none."""
        verdict = self.estimate.verdict
        return None if verdict is None else verdict.fits

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.estimate/2"."""
        return document_of(self)

    @figure
    def kind(self) -> str:
        """Training and other work have documents of the same schema."""
        return "serving"

    @figure
    def model(self) -> Mapping[str, Any]:
        """The model and its size."""
        estimate = self.estimate
        return {
            "name": estimate.model,
            "source": self.source,
            "num_parameters": estimate.num_parameters,
        }

    @property
    def html(self) -> str:
        """One self-contained page; the document is in it."""
        from ullage.answers.html import render_page

        return render_page(self.estimate.model, self.blocks(), self.document)

    def blocks(self) -> Blocks:
        """The blocks of its view."""
        from ullage.report.text.serving import serving_blocks

        return serving_blocks(self.estimate, self.source, self.gpus, self.knobs, self.time)

    def text(self, width: int = 80) -> str:
        """The report, as the terminal shows it."""
        from ullage.answers.text import render

        return render(self.blocks(), width)


@takes(ServingOptions)
def estimate_serving(options: ServingOptions) -> ServingAnswer:
    """What serving a model needs, and how many users it holds; no torch, some milliseconds. Without
    a GPU: only what a request keeps. With `time`: the seconds of a prompt of `context` tokens, and
    of one new token for each of `users` requests (default: one) of that length.

    Raises:
        SpecError: the model or GPU is not known, or the plan is not possible.
    """
    from ullage.estimate.serving.gpu_ranking import rank_for_serving
    from ullage.estimate.serving.knobs import find_serving_knobs
    from ullage.estimate.serving.serving import estimate_serving as estimate
    from ullage.gpus.catalog import load_catalog

    model = options.model
    source = Found(model, "") if isinstance(model, Config) else find_config(str(model))
    plan = _make_plan(options)
    ranked = rank_for_serving(source.config, plan, load_catalog()) if options.which_gpu else ()
    turned = find_serving_knobs(source.config, plan) if options.knobs else ()
    times = None
    if options.time or options.price is not None or options.interconnect is not None:
        from ullage.clock.interconnect import parse_interconnect
        from ullage.estimate.time.serving import time_serving
        from ullage.gpus.price import check_price

        links = None if options.interconnect is None else parse_interconnect(options.interconnect)
        times = time_serving(source.config, plan, links, check_price(options.price))
    served = estimate(source.config, plan)
    return ServingAnswer(served, source.source, ranked, turned, times)


def _make_plan(options: ServingOptions) -> ServingPlan:
    from ullage.estimate.serving.serving_plan import ServingPlan
    from ullage.gpus.catalog import find_entry

    names = {field.name for field in fields(ServingPlan)} & options_of(ServingOptions).keys()
    values = {name: getattr(options, name) for name in names} | {
        "gpu": None if options.gpu is None else find_entry(options.gpu),
        "tensor_parallel": options.tensor,
        "max_batched_tokens": options.batched_tokens,
        "capacity_bytes": None if options.memory is None else parse_bytes(options.memory),
        "has_graphs": False if options.eager else None,
        "is_cached": True if options.cached else None,
    }
    if options.lora_slots is not None:
        values |= _read_slots(str(options.lora_slots), options.lora_rank)
    if isinstance(options.draft, str):
        values |= _read_draft(options.draft, options.speculated)
    return ServingPlan(**{name: value for name, value in values.items() if value is not None})


def _read_slots(text: str, given_rank: int | None) -> dict[str, int | None]:
    """The fields of "SLOTS" or "SLOTS:RANK"."""
    from ullage.estimate.workloads.option_values import parse_count, split_count

    word, rank = split_count("--lora-slots", text)
    if rank is not None and given_rank is not None:
        raise SpecError(f"--lora-slots {text} has a rank; leave out --lora-rank")
    return {"lora_slots": parse_count("--lora-slots", word), "lora_rank": rank or given_rank}


def _read_draft(text: str, speculated: int | None) -> dict[str, Any]:
    """The fields of "MODEL" or "MODEL:TOKENS": the model's configuration, and the tokens."""
    from ullage.estimate.workloads.option_values import split_count

    name, tokens = split_count("draft", text)
    if tokens is not None and speculated is not None:
        raise SpecError(f"draft: {text!r} says how many tokens; leave out speculated={speculated}")
    return {"draft": find_config(name).config, "speculated": tokens or speculated or 1}


@dataclass(frozen=True, slots=True)
class ServedTraffic:
    """A finished run of a server."""

    report: ServeReport

    @property
    def measures(self) -> Measures:
        """Percentiles, throughput, goodput, preemptions."""
        return self.report.measures

    @property
    def outcome(self) -> Outcome:
        """What became of each request, as columns."""
        return self.report.served.outcome

    @property
    def exit_code(self) -> int:
        """0: every request has its answer, or was refused; 1: some can never have one."""
        return 1 if self.outcome.num_stuck else 0

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.serve/1"."""
        return document_of(self.report)

    @property
    def html(self) -> str:
        """One self-contained page; the document is in it."""
        from ullage.answers.html import render_page
        from ullage.report.text.serve import serve_blocks

        command = " ".join(self.report.served.command)
        return render_page(command, serve_blocks(self.report), self.document)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.answers.text import render
        from ullage.report.text.serve import serve_blocks

        return render(serve_blocks(self.report), width)


@takes(ServeOptions)
def serve_traffic(options: ServeOptions) -> ServedTraffic:
    """Runs a server on the phantom with some traffic, in virtual time.

    Raises:
        SpecError: the command, the traffic or the objective is not possible.
        EnvironmentProblem: the engine did not start, or failed.
    """
    from ullage.serve.curve import make_curve
    from ullage.serve.host_time import parse_host_time
    from ullage.serve.measures import measure
    from ullage.serve.report import ServeReport
    from ullage.serve.run import check_command, serve
    from ullage.serve.slo import parse_slo
    from ullage.serve.traffic import load_traffic

    check_command(options.program)
    objective = None if options.slo is None else parse_slo(options.slo)
    host_time, python = options.host_time, options.python
    served = serve(
        options.program, load_traffic(traffic_of(options)), gpu=options.gpu or GPU,
        python=None if python is None else os.fspath(python),
        stdout_to_stderr=options.stdout_to_stderr, loads=options.loads,
        host=None if host_time is None else parse_host_time(host_time), is_cached=options.cached,
    )  # fmt: skip
    curve = make_curve(served.by_load, objective) if served.by_load else None
    report = ServeReport(served, measure(served.outcome, objective), objective, curve)
    return ServedTraffic(report)


def traffic_of(options: ServeOptions) -> str:
    """The traffic; raises SpecError where none is named."""
    if options.traffic is None:
        raise SpecError(
            "no traffic: add --traffic FILE, or such as --traffic poisson:rate=2,prompt=1000,"
            "output=200"
        )
    return options.traffic
