"""`ullage run`: runs a program on a simulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import click

from ullage.api.run import default_snapshot, run
from ullage.cli.main import say
from ullage.cli.options import flags
from ullage.cli.options.run import RunOptions, check_guard
from ullage.cli.output import FILE, UNWRITABLE, check_files, write_run
from ullage.errors import SpecError


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    cls=flags.in_sections(
        {
            "Most used": ("gpu", "python", "steps", "sweep", "html"),
            "GPU": ("gpus", "memory", "capability", "budget", "platform"),
            "Ranks of a job": ("world_size", "ranks", "local_world_size"),
            "Time": ("time", "price", "interconnect", "measured", "clock", "timeline"),
            "Program": (
                "plan", "guard", "resume", "try_remedies", "alloc_conf", "real_init",
                "dummy_weights", "values", "assume", "nvml",
            ),
            "Output": ("snapshot", "output", "plot", "as_json", "full", "force", "quiet"),
        }
    ),
)  # fmt: skip
@flags.program
@click.option(
    "--gpu",
    metavar="NAME[,...]",
    help="GPU(s) to simulate (see `ullage gpus`); default: an H100 with unlimited memory.",
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="NAME=A,B,...",
    help="Run once per value, which replaces {NAME} in the command; repeatable.",
)
@click.option("--plot", type=FILE, metavar="FILE", help="Draw the sweep: .svg, .png or .pdf.")
@flags.memory
@flags.capability
@click.option(
    "--budget",
    metavar="SIZE",
    help="Memory that the program may use; beyond it, it runs out of memory.",
)
@click.option(
    "--platform",
    type=click.Choice(("linux", "windows")),
    default="linux",
    help="System with the GPU, whose driver orders addresses; WSL2: windows. Default: linux.",
)
@click.option("--gpus", type=int, metavar="N", help="Number of identical GPUs.")
@click.option("--world-size", type=int, metavar="N", help="Simulate one rank of a job of N ranks.")
@click.option(
    "--rank",
    "--ranks",
    "ranks",
    metavar="R[,...]",
    help="Ranks to simulate, or 'distinct'; default: 0.",
)
@click.option("--local-world-size", type=int, metavar="N", help="Ranks per node; default: 8.")
@flags.alloc_conf
@click.option("--steps", type=int, metavar="N", help="Stop after N training steps.")
@flags.python
@click.option("--real-init", is_flag=True, help="Initialise weights on the CPU; default: skip it.")
@flags.dummy_weights
@click.option(
    "--values",
    type=click.Choice(("on", "off")),
    default="on",
    callback=lambda _context, _parameter, value: value == "on",
    help="Whether small tensor values are computed; default: on.",
)
@flags.assume
@click.option(
    "--try-remedies", is_flag=True, help="If memory runs out, run again with each remedy."
)
@click.option("--plan", type=FILE, metavar="FILE", help="Run under this plan (from `ullage fit`).")
@flags.guard
@flags.resume
@click.option(
    "--snapshot",
    type=FILE,
    metavar="FILE",
    help="Memory snapshot; default: a new file here. For several ranks: a directory.",
)
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Also write the run document (JSON)."
)
@flags.html
@click.option(
    "--json", "as_json", is_flag=True, help="Print the run document (JSON) instead of the report."
)
@click.option("--time", is_flag=True, help="Also predict how long a step takes on the GPU.")
@click.option(
    "--price",
    type=float,
    metavar="DOLLARS",
    help="Price of a GPU-hour: what steps and tokens cost; implies --time.",
)
@click.option(
    "--interconnect",
    metavar="TEXT",
    help="Links between the GPUs; default: those of the GPU; implies --time.",
)
@flags.measured
@click.option(
    "--clock",
    type=click.Choice(("real", "virtual")),
    default="real",
    help="Clock that the program reads; virtual: the predicted one; implies --time.",
)
@click.option(
    "--timeline",
    type=FILE,
    metavar="FILE",
    help="Write the last step for ui.perfetto.dev (JSON); implies --time.",
)
@click.option(
    "--nvml",
    type=FILE,
    metavar="DIR",
    help="Directory through which NVML programs see the GPUs: ullage nvml DIR -- nvitop.",
)
@flags.full
@flags.force
@flags.quiet_run
@flags.as_record(RunOptions)
def run_command(options: RunOptions) -> int:
    """Run a program on a simulated GPU: does it fit, what is its peak, who owns it?

    \b
    ullage run --gpu h100-80gb -- train.py --batch-size 16
    ullage run --memory 24GiB -- -m package.train
    ullage run --gpu l4 --sweep batch=1,2,4 -- train.py --batch-size {batch}
    ullage run --world-size 64 --ranks 0,63 -- train_fsdp.py
    ullage run --gpus 4 -- torchrun --nproc-per-node 4 train_ddp.py

    Exits with 0 if it fits, 1 if it does not, 3 if the program itself failed.
    """
    check_files(
        ("--output", options.output),
        ("--html", options.html),
        ("--plot", options.plot),
        ("--timeline", options.timeline),
        ("--snapshot", None if options.has_many_ranks else options.snapshot),
        force=options.force,
    )
    return _choose_mode(options)(options)


def _choose_mode(options: RunOptions) -> Callable[[RunOptions], int]:
    """One run, one rank of a job, several ranks of it, or a sweep."""
    from ullage.cli.ranks import run_many_ranks
    from ullage.cli.sweep import run_sweep

    check_guard(options.guard, options.plan, options.resume)
    if options.guard is not None and (options.is_sweep or options.has_many_ranks):
        raise SpecError("--guard is for one run, or one rank of a job; leave it or the others out")
    if options.try_remedies and (options.is_sweep or options.has_many_ranks):
        raise SpecError("--try-remedies is for one run on one GPU; leave it or the others out")
    if options.nvml is not None and (options.is_sweep or options.has_many_ranks):
        raise SpecError(
            "--nvml is for one run; start several with the same directory, or torchrun in one"
        )
    if options.is_sweep:
        return run_sweep
    if options.plot is not None:
        raise SpecError("--plot draws a sweep; add --sweep NAME=A,B,... or several GPUs")
    if options.has_many_ranks:
        return run_many_ranks
    return run_alone if options.ranks is None else run_rank


def run_alone(options: RunOptions) -> int:
    """One run: a program by itself, or rank 0 where only the size of its job is given."""
    return _run_once(options, rank=None)


def run_rank(options: RunOptions) -> int:
    """One rank of a job."""
    return _run_once(options, rank=int(options.ranks or 0))


def _run_once(options: RunOptions, rank: int | None) -> int:
    """One process on one machine: one report."""
    output = options.target
    with output.progress() as on_progress:
        result = run(
            options.program,
            gpu=options.gpu,
            memory=options.memory,
            capability=options.capability,
            budget=options.budget,
            python=options.python,
            snapshot=options.snapshot or default_snapshot(options.program, options.python),
            gpus=options.gpus,
            world_size=options.world_size,
            rank=rank,
            local_world_size=options.local_world_size,
            force=options.force,
            try_remedies=options.try_remedies,
            price=options.price,
            nvml=options.nvml,
            guard=options.guard,
            resume=options.resume,
            say=partial(say, is_aside=True),
            stdout_to_stderr=options.as_json,
            on_progress=on_progress,
            **options.of_program,
        )
    is_written = write_run(result, output, options.snapshot, options.html, options.timeline)
    return result.exit_code if is_written else UNWRITABLE
