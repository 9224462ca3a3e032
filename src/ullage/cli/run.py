"""`ullage run`: runs a program on a simulated GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.cli.main import say
from ullage.cli.options.command import command
from ullage.cli.output import OUTPUT, QUIET, Output, show_failure, write_run
from ullage.errors import SpecError
from ullage.protocol.options.run import TIME, RunOptions

if TYPE_CHECKING:
    from ullage.api.run import Run


@dataclass(frozen=True, slots=True)
class RunOutput(Output):
    """The outputs of a run, or of several."""

    timeline: Path | None = TIME(
        "Write the last step for ui.perfetto.dev (JSON); implies --time.", "FILE"
    )
    plot: Path | None = OUTPUT("Draw the sweep: .svg, .png or .pdf.", "FILE")


@command(most_used=("gpu", "python", "steps", "sweep", "html"), says={"quiet": QUIET})
def run_command(options: RunOptions, output: RunOutput) -> int:
    """Run a program on a simulated GPU: does it fit, what is its peak, who owns it?

    \b
    ullage run --gpu h100-80gb -- train.py --batch-size 16
    ullage run --memory 24GiB -- -m package.train
    ullage run --gpu l4 --sweep batch=1,2,4 -- train.py --batch-size {batch}
    ullage run --world-size 64 --ranks 0,63 -- train_fsdp.py
    ullage run --gpus 4 -- torchrun --nproc-per-node 4 train_ddp.py

    Exits with 0 if it fits, 1 if it does not, 3 if the program itself failed.
    """
    snapshot = None if options.snapshot is None else Path(options.snapshot)
    output.check(
        ("--plot", output.plot),
        ("--timeline", output.timeline),
        ("--snapshot", None if options.has_many_ranks else snapshot),
    )
    options = replace(
        options,
        time=options.time or output.timeline is not None,
        say=partial(say, is_aside=True),
        stdout_to_stderr=output.as_json,
        on_failure=show_failure,
    )
    if options.is_sweep:
        from ullage.cli.sweep import run_sweep

        return run_sweep(options, output)
    if output.plot is not None:
        raise SpecError("--plot draws a sweep; add --sweep NAME=A,B,... or several GPUs")
    from ullage.api.run import default_snapshot, run

    path = snapshot
    if options.has_many_ranks and path is None and output.html is not None:
        # The page is made from the snapshots.
        path = default_snapshot(options.program, options.python).with_suffix("")
    elif not options.has_many_ranks:
        path = path or default_snapshot(options.program, options.python)
    with output.progress() as on_progress:
        options = replace(options, snapshot=path, on_progress=on_progress)
        result = _run_ranks(options) if options.has_many_ranks else run.act(options)
    file = None if options.has_many_ranks else snapshot
    return write_run(result, output, file, output.timeline)


def _run_ranks(options: RunOptions) -> Run:
    from ullage.api.ranks import run_ranks  # one run needs none of it

    return run_ranks.act(options)
