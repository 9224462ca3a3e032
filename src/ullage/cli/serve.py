"""`ullage serve`: a real engine on the phantom with traffic, in virtual time."""

from __future__ import annotations

from ullage.cli.forecast import show_forecast
from ullage.cli.options.command import command
from ullage.cli.output import Output
from ullage.cli.search import show_search
from ullage.errors import SpecError
from ullage.protocol.options.serve import ServeOptions


@command(
    most_used=("gpu", "traffic", "slo", "python", "html"),
    outputs=("output", "html", "as_json", "force", "quiet"),
)
def serve_command(options: ServeOptions, output: Output) -> int:
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
    output.check()
    if options.search or options.forecast:
        _check_goes_without_replay(options, output)
    if options.search:
        return show_search(options, options.traffic, output)
    gpu = options.gpu or "h100-80gb"
    if options.forecast:
        return show_forecast(options, options.traffic, gpu, output)
    from ullage.api.serving import serve_traffic
    from ullage.report.text.serve import print_serve, serve_line

    run = serve_traffic(
        options.program,
        options.traffic,
        gpu=gpu,
        python=options.python,
        slo=options.slo,
        loads=options.loads,
        host_time=options.host_time,
        cached=options.cached,
        stdout_to_stderr=True,
    )
    return output.give(run, run.report, serve_line, print_serve, exit_code=run.exit_code)


def _check_goes_without_replay(options: ServeOptions, output: Output) -> None:
    """Raises SpecError for an option that goes neither with --search nor with --forecast."""
    what = "--search" if options.search else "--forecast"
    for flag, value in (
        ("--loads", options.loads or None),
        ("--host-time", options.host_time),
        ("--cached", options.cached or None),
        ("--html", output.html),
    ):
        if value is not None:
            raise SpecError(f"{flag} does not go with {what}; leave it out")
