"""`ullage serve --search`: the smallest server that holds an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.cli.output import Output
from ullage.errors import SpecError

if TYPE_CHECKING:
    from ullage.protocol.options.serve import ServeOptions


def show_search(options: ServeOptions, traffic: str, output: Output) -> int:
    """Searches and shows; the exit code is 1 where no server holds the objective."""
    if options.slo is None:
        raise SpecError("no objective: add --slo, for example --slo ttft=1s,tpot=50ms")
    from ullage.api.servers.search import GPUS, search_server
    from ullage.report.text.search import print_search, search_line

    with output.progress(has_lines=True) as say:
        result = search_server(
            options.program,
            traffic,
            slo=options.slo,
            gpus=options.gpu.split(",") if options.gpu else GPUS,
            python=options.python,
            target=options.target,
            allow=options.allow,
            on_progress=say,
        )
    view = (result.searched, result.worths, result.capacity, result.tiers)
    return output.give(result, view, search_line, print_search, exit_code=result.exit_code)
