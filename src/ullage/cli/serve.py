"""`ullage serve`: a real engine on the phantom with traffic, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ullage.cli.forecast import show_forecast
from ullage.cli.options import flags
from ullage.cli.output import Output, check_files
from ullage.cli.search import show_search
from ullage.errors import SpecError


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The parameters of `ullage serve`, named as there."""

    program: tuple[str, ...]
    gpu: str | None
    traffic: str | None
    slo: str | None
    loads: str | None
    host_time: str | None
    cached: bool
    search: bool
    target: str
    allow: str | None
    forecast: bool
    cache: str | None
    python: str | None
    output: Path | None
    html: Path | None
    as_json: bool
    force: bool
    quiet: bool


@click.command(
    "serve",
    context_settings={"allow_interspersed_args": False},
    cls=flags.in_sections(
        {
            "Most used": ("gpu", "traffic", "slo", "python", "html"),
            "Replay": ("loads", "host_time", "cached"),
            "Search": ("search", "target", "allow"),
            "Forecast": ("forecast", "cache"),
            "Output": ("output", "as_json", "force", "quiet"),
        }
    ),
)
@flags.program
@click.option(
    "--gpu",
    metavar="NAME",
    help="GPU (see `ullage gpus`); default: an H100. With --search: several, with commas.",
)
@click.option(
    "--traffic",
    metavar="FILE|KIND:...",
    help="Trace, or a generator: poisson:rate=2,prompt=1000,output=200,duration=10m.",
)
@click.option("--slo", metavar="TEXT", help="Objective, for example ttft=1s,tpot=50ms.")
@click.option(
    "--loads", metavar="LIST", help="Also send it at so many times its rate, for example 0.5,2,4."
)
@click.option(
    "--host-time",
    metavar="TEXT",
    help="Time of the host: measured, none, or for example launch=40us,http=1ms.",
)
@click.option(
    "--cached", is_flag=True, help="Start twice, and serve with the compile cache of the first."
)
@click.option("--search", is_flag=True, help="Find the smallest server that holds the objective.")
@click.option(
    "--target",
    metavar="PERCENT",
    default="99%",
    help="With --search: requests that must meet it; default: 99%.",
)
@click.option(
    "--allow",
    metavar="NAMES",
    help="With --search: fp8-cache, fp8-weights, which change the model's numbers.",
)
@click.option("--forecast", is_flag=True, help="Forecast preemptions without the engine.")
@click.option("--cache", metavar="SIZE", help="With --forecast: bytes of the cache on each GPU.")
@flags.python
@flags.document_output
@flags.html
@flags.as_json
@flags.force
@flags.quiet
@flags.as_record(ServeOptions)
def serve_command(options: ServeOptions) -> int:
    """Serve traffic with a real engine on a simulated GPU, in virtual time: latency, goodput,
    preemptions, and what the cache held.

    \b
    ullage serve --gpu h100-80gb --traffic trace.csv -- vllm serve llama-3.1-8b
    ullage serve --traffic azure-conv:duration=1h --slo ttft=1s -- vllm serve MODEL
    ullage serve --traffic FILE -- transformers serve MODEL --continuous-batching
    ullage serve --search --gpu l4,l40s --traffic FILE --slo ttft=1s -- vllm serve MODEL
    ullage serve --forecast --gpu l40s --traffic FILE -- vllm serve MODEL

    Exits with 0, with 1 if some requests can never be answered or no server holds the objective, 2
    if the engine did not start.
    """
    if options.traffic is None:
        raise SpecError(
            "no traffic: add --traffic FILE, or such as --traffic poisson:rate=2,prompt=1000,"
            "output=200"
        )
    check_files(("--output", options.output), ("--html", options.html), force=options.force)
    if options.search or options.forecast:
        _check_goes_without_replay(options)
    if options.search:
        return show_search(options, options.traffic)
    gpu = options.gpu or "h100-80gb"
    if options.forecast:
        return show_forecast(options, options.traffic, gpu)
    from ullage.api.serving import serve_traffic
    from ullage.report.text.serve import serve_blocks
    from ullage.serve.run import parse_loads

    run = serve_traffic(
        options.program,
        options.traffic,
        gpu=gpu,
        python=options.python,
        slo=options.slo,
        loads=() if options.loads is None else parse_loads(options.loads),
        host_time=options.host_time,
        cached=options.cached,
        stdout_to_stderr=True,
    )
    target = Output(
        is_json=options.as_json, is_quiet=options.quiet, path=options.output, force=options.force
    )
    return target.give(run, serve_blocks(run.report), html=options.html, exit_code=run.exit_code)


def _check_goes_without_replay(options: ServeOptions) -> None:
    """Raises SpecError for an option that goes neither with --search nor with --forecast."""
    what = "--search" if options.search else "--forecast"
    for flag, value in (
        ("--loads", options.loads),
        ("--host-time", options.host_time),
        ("--cached", options.cached or None),
        ("--html", options.html),
    ):
        if value is not None:
            raise SpecError(f"{flag} does not go with {what}; leave it out")
