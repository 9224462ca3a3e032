"""`ullage what-if`: replays a snapshot under other settings of the allocator."""

from __future__ import annotations

from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output
from ullage.verbs.explain.options import WhatIfOptions


@command()
def what_if_command(options: WhatIfOptions, output: Output) -> int:
    """Replay a memory snapshot under other settings of the allocator, or on another GPU.

    \b
    ullage what-if snapshot.pickle
    ullage what-if snapshot.pickle --gpu l4

    FILE is as for `ullage explain`, and has a trace.

    Exits with 0, or with 1 if a GPU was named and has memory for it under no setting.
    """
    from ullage.verbs.what_if.function import what_if

    output.check()
    result = what_if.act(options)
    return output.give(result)
