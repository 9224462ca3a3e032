"""`ullage run --sweep`, and on several GPUs: runs of one program, in one table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ullage.verbs.command_line.output import Output
    from ullage.verbs.run.options import RunOptions


def run_sweep(options: RunOptions, output: Output) -> int:
    """Runs the program with each combination of values and GPUs; the last lines name the files."""
    from ullage.verbs.run.sweep_function import sweep

    with output.progress() as on_progress:
        result = sweep.act(replace(options, on_progress=on_progress))
    return output.give(result)
