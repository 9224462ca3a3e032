"""`ullage serve`: a real engine on the phantom with traffic, in virtual time."""

from __future__ import annotations

from dataclasses import replace

from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output
from ullage.verbs.serve.options import ServeOptions


@command(
    most_used=("gpu", "traffic", "slo", "python", "output"),
)
def serve_command(options: ServeOptions, output: Output) -> int:
    """Serve traffic with a real engine on a simulated GPU, in virtual time: latency, goodput,
    preemptions, and what the cache held.

    \b
    ullage serve --gpu h100-80gb --traffic trace.csv -- vllm serve llama-3.1-8b
    ullage serve --traffic azure-conv:duration=1h --slo ttft=1s -- vllm serve MODEL
    ullage serve --traffic FILE -- transformers serve MODEL --continuous-batching

    Exits with 0, with 1 if some requests can never be answered, 2 if the engine did not start.
    """
    from ullage.verbs.serve.function import serve_traffic, traffic_of

    traffic_of(options)
    output.check(".html")
    run = serve_traffic.act(replace(options, stdout_to_stderr=True))
    return output.give(run)
