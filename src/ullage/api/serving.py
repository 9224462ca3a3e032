"""Serving: from a configuration (`ullage estimate --serve`, `ullage.estimate_serving`), and with a
real engine on the phantom, in virtual time (`ullage serve`, `ullage.serve_traffic`).

    answer = ullage.estimate_serving("llama-3.1-8b", gpu="l40s", context=32768, users=4)
    answer.fits, answer.estimate.concurrency

    run = ullage.serve_traffic(["vllm", "serve", "llama-3.1-8b"], "azure-conv:duration=1h",
                               gpu="h100-80gb", python="vllm/bin/python", slo="ttft=1s,tpot=50ms")
    print(run.text())
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ullage.errors import SpecError
from ullage.models.config import Config
from ullage.models.find import Found, find_config

if TYPE_CHECKING:
    from ullage.answers.blocks import Blocks
    from ullage.estimate.serving.gpu_ranking import ServingRow
    from ullage.estimate.serving.knobs import ServingKnob
    from ullage.estimate.serving.serving_plan import ServingEstimate
    from ullage.estimate.time.serving import ServingTime
    from ullage.gpus.gpu import Entry
    from ullage.serve.measures import Measures
    from ullage.serve.outcome import Outcome
    from ullage.serve.report import ServeReport


class ServingFields(TypedDict, total=False):
    """The fields of a `ServingPlan` by name, without its GPU; None is the field's default."""

    context: int | None
    users: int | None
    tensor_parallel: int | None
    engine: str | None
    engine_version: str | None
    weights: str | None
    kv: str | None
    block_size: int | None
    utilization: float | None
    kv_bytes: int | None
    has_prefix_caching: bool | None
    max_batched_tokens: int | None
    max_seqs: int | None
    has_graphs: bool | None
    is_cached: bool | None
    capacity_bytes: int | None
    is_async: bool | None
    speculated: int | None
    draft_bytes: int | None
    lora_slots: int | None
    lora_rank: int | None
    lora_bytes: int | None
    draft: str | Config | None
    encoded: int | None


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

    estimate: ServingEstimate
    source: str
    gpus: tuple[ServingRow, ...] = ()
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
        from ullage.report.document.serving import serving_document

        document = serving_document(self.estimate, self.source, self.gpus, self.knobs)
        if self.time is not None:
            from ullage.report.document.time import serving_time_document

            document["time"] = serving_time_document(self.time)
        return document

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


def estimate_serving(
    model: str | Config,
    *,
    gpu: str | Entry | None = None,
    which_gpu: bool = False,
    knobs: bool = False,
    time: bool = False,
    price: float | None = None,
    interconnect: str | None = None,
    **plan: Unpack[ServingFields],
) -> ServingAnswer:
    """What serving a model needs, and how many users it holds; no torch, some milliseconds.

    Args:
        model: as for `estimate_training`.
        gpu: of the catalogue; None: only what a request keeps.
        which_gpu: rank the whole catalogue as well.
        knobs: list what would leave more room as well.
        time: predict the seconds of a prompt of `context` tokens, and of one new token for each of
            `users` requests (default: one) of that length.
        price: dollars for a GPU-hour, for what tokens cost; implies `time`.
        interconnect: the links between GPUs; implies `time`.
        plan: the fields of `ullage.estimate.serving.serving_plan.ServingPlan`; `draft` also as the
            name of a model with the tokens that it proposes, such as "llama-3.2-1b:4".

    Raises:
        SpecError: the model or GPU is not known, or the plan is not possible.
    """
    from ullage.estimate.serving.gpu_ranking import rank_for_serving
    from ullage.estimate.serving.knobs import find_serving_knobs
    from ullage.estimate.serving.serving import ServingPlan
    from ullage.estimate.serving.serving import estimate_serving as estimate
    from ullage.gpus.catalog import find_entry, load_catalog

    source = Found(model, "") if isinstance(model, Config) else find_config(model)
    entry = find_entry(gpu) if isinstance(gpu, str) else gpu
    values: dict[str, Any] = {name: value for name, value in plan.items() if value is not None}
    if isinstance(plan.get("draft"), str):
        values |= _read_draft(values["draft"], values.get("speculated"))
    serving_plan = ServingPlan(gpu=entry, **values)
    ranked = rank_for_serving(source.config, serving_plan, load_catalog()) if which_gpu else ()
    turned = find_serving_knobs(source.config, serving_plan) if knobs else ()
    times = None
    if time or price is not None or interconnect is not None:
        from ullage.clock.interconnect import parse_interconnect
        from ullage.estimate.time.serving import time_serving
        from ullage.gpus.price import check_price

        links = None if interconnect is None else parse_interconnect(interconnect)
        times = time_serving(source.config, serving_plan, links, check_price(price))
    served = estimate(source.config, serving_plan)
    return ServingAnswer(served, source.source, ranked, turned, times)


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
        from ullage.report.document.serve import serve_document

        return serve_document(self.report)

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


def serve_traffic(
    command: Sequence[str],
    traffic: str,
    *,
    gpu: str,
    python: str | os.PathLike[str] | None = None,
    slo: str | None = None,
    stdout_to_stderr: bool = False,
    loads: Sequence[float] = (),
    host_time: str | None = None,
    cached: bool = False,
) -> ServedTraffic:
    """Runs a server on the phantom with some traffic, in virtual time.

    Args:
        command: `vllm serve MODEL ...`; the model is found as by `ullage.estimate_serving`.
        traffic: a file of a known trace, or a generator such as "poisson:rate=2,prompt=1000,
            output=200,duration=10m".
        gpu: a GPU of the catalogue.
        python: the interpreter of an environment with the engine; None: this one.
        slo: such as "ttft=1s,tpot=50ms".
        stdout_to_stderr: the engine's own output goes to stderr.
        loads: factors of the traffic's rate at which it is sent as well, for the curve.
        host_time: what the host takes: "measured", "none", "launch=40us,http=1ms", or for a step
            and for each request in it "1ms+20us"; None: for vLLM as it was measured.
        cached: the engine starts twice, and serves with the compile cache of its first start.

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

    check_command(command)
    objective = None if slo is None else parse_slo(slo)
    served = serve(
        command, load_traffic(traffic), gpu=gpu,
        python=None if python is None else os.fspath(python), stdout_to_stderr=stdout_to_stderr,
        loads=loads, host=None if host_time is None else parse_host_time(host_time),
        is_cached=cached,
    )  # fmt: skip
    curve = make_curve(served.by_load, objective) if served.by_load else None
    report = ServeReport(served, measure(served.outcome, objective), objective, curve)
    return ServedTraffic(report)
