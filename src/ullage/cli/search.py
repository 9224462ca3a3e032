"""`ullage serve --search`: the smallest server that holds an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.cli.output import Output
from ullage.errors import SpecError

if TYPE_CHECKING:
    from ullage.cli.serve import ServeOptions


def show_search(options: ServeOptions, traffic: str) -> int:
    """Searches and shows; the exit code is 1 where no server holds the objective."""
    if options.slo is None:
        raise SpecError("no objective: add --slo, for example --slo ttft=1s,tpot=50ms")
    from ullage.api.servers.search import GPUS, search_server
    from ullage.report.text.search import search_blocks

    target = Output(
        is_json=options.as_json, is_quiet=options.quiet, path=options.output, force=options.force
    )
    with target.progress(has_lines=True) as say:
        result = search_server(
            options.program,
            traffic,
            slo=options.slo,
            gpus=options.gpu.split(",") if options.gpu else GPUS,
            python=options.python,
            target=_share(options.target),
            allow=[name for name in (options.allow or "").split(",") if name],
            on_progress=say,
        )
    view = (result.searched, result.worths, result.capacity, result.tiers)
    return target.give(result, search_blocks(view), exit_code=result.exit_code)


def _share(text: str) -> float:
    number = text.removesuffix("%").strip()
    try:
        return float(number) / 100
    except ValueError:
        raise SpecError(f"--target {text!r}: expected per cent, for example 99%") from None
