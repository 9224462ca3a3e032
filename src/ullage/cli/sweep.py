"""`ullage run --sweep`, and on several GPUs: runs of one program, in one table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.cli.output import check_plot_option
from ullage.errors import SpecError

if TYPE_CHECKING:
    from ullage.cli.run import RunOutput
    from ullage.protocol.options.run import RunOptions


def run_sweep(options: RunOptions, output: RunOutput) -> int:
    """Runs the program with each combination of values and GPUs; the last lines name the files.

    Raises:
        SpecError: an option does not go with a sweep.
    """
    for flag, path in (("--html", output.html), ("--timeline", output.timeline)):
        if path is not None:
            raise SpecError(f"{flag} is of one run; leave it out, or run one value on one GPU")
    check_plot_option(output.plot)
    from ullage.api.sweep import sweep
    from ullage.report.text.sweep import sweep_blocks

    with output.progress() as on_progress:
        result = sweep.act(replace(options, on_progress=on_progress))
    if output.plot is not None:
        result.plot(output.plot, force=output.force)
    return output.give(result, sweep_blocks(result.report), [output.plot])
