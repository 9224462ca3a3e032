"""`ullage run`: runs a program on a simulated GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import (
    PLOTS,
    TIMELINE,
    Output,
    ending_of,
    show_failure,
    write_run,
)
from ullage.verbs.command_line.streams import say
from ullage.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from ullage.verbs.run.function import Run


@command(
    most_used=("gpu", "python", "steps", "sweep", "output"), outputs=("output", "as_json", "full"),
    says={
        "output": "Also write .html, a page; .json, the document; .perfetto.json, the last step, "
        "which implies --time; of a sweep .svg, .png or .pdf, a plot; repeatable."
    },
)  # fmt: skip
def run_command(options: RunOptions, output: Output) -> int:
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
    endings = PLOTS if options.is_sweep else (".html", TIMELINE)
    output.check(*endings, others=[("--snapshot", None if options.has_many_ranks else snapshot)])
    files = {ending_of(path) for path in output.output}
    options = replace(
        options,
        time=options.time or TIMELINE in files,
        say=partial(say, is_aside=True),
        stdout_to_stderr=output.as_json,
        on_failure=show_failure,
    )
    if options.is_sweep:
        from ullage.verbs.run.sweep_function import sweep

        with output.progress() as on_progress:
            swept = sweep.act(replace(options, on_progress=on_progress))
        return output.give(swept)
    from ullage.verbs.run.function import default_snapshot, run

    path = snapshot
    if options.has_many_ranks and path is None and ".html" in files:
        # The page is made from the snapshots.
        path = default_snapshot(options.program, options.python).with_suffix("")
    elif not options.has_many_ranks:
        path = path or default_snapshot(options.program, options.python)
    with output.progress() as on_progress:
        options = replace(options, snapshot=path, on_progress=on_progress)
        result = _run_ranks(options) if options.has_many_ranks else run.act(options)
    file = None if options.has_many_ranks else snapshot
    return write_run(result, output, file)


def _run_ranks(options: RunOptions) -> Run:
    from ullage.verbs.run.ranks_function import run_ranks  # one run needs none of it

    return run_ranks.act(options)
