"""`ullage smallest`: searches the smallest server that holds an objective for its traffic."""

from __future__ import annotations

from dataclasses import replace

from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output
from ullage.verbs.smallest.options import SmallestOptions


@command()
def smallest_command(options: SmallestOptions, output: Output) -> int:
    """Search for the smallest server that holds an objective for its traffic: which of the GPUs,
    how many, and which flags. Flags that the command has stay unchanged.

    \b
    ullage smallest --gpu l4,l40s --traffic FILE --slo ttft=1s -- vllm serve MODEL

    Each claim is that of a run on the phantom, in virtual time.

    Exits with 0, or with 1 if no server holds the objective.
    """
    from ullage.verbs.smallest.function import smallest

    output.check()
    with output.progress(has_lines=True) as on_progress:
        server = smallest.act(replace(options, on_progress=on_progress))
    return output.give(server)
