"""`ullage serve`: a real engine on the phantom with traffic, in virtual time."""

from __future__ import annotations

from dataclasses import replace

from ullage.cli.options.command import command
from ullage.cli.output import Output
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
    from ullage.api.serving import serve_traffic, traffic_of

    traffic_of(options)
    output.check()
    if options.search or options.forecast:
        _check_goes_without_replay(options, output)
    if options.search:
        from ullage.api.servers.search import search_server
        from ullage.report.text.search import search_blocks

        with output.progress(has_lines=True) as on_progress:
            server = search_server.act(replace(options, on_progress=on_progress))
        searched = (server.searched, server.worths, server.capacity, server.tiers)
        return output.give(server, search_blocks(searched))
    if options.forecast:
        from ullage.api.servers.forecast import forecast_command
        from ullage.report.text.forecast import forecast_blocks

        forecast = forecast_command(options)
        view = (forecast.forecast, forecast.traffic, forecast.slo, forecast.tiers)
        return output.give(forecast, forecast_blocks(view))
    from ullage.report.text.serve import serve_blocks

    run = serve_traffic.act(replace(options, stdout_to_stderr=True))
    return output.give(run, serve_blocks(run.report))


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
