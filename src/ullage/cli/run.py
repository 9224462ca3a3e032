"""`ullage run`: runs a program on a GPU that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ullage.api.run import default_snapshot, run
from ullage.cli import flags
from ullage.cli.output import (
    FILE,
    UNWRITABLE,
    Output,
    check_files,
    show_failure,
    write_run,
    write_sweep,
)
from ullage.errors import SpecError


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    cls=flags.in_sections(
        {
            "The device": ("gpu", "gpus", "memory", "capability", "budget"),
            "A rank of a job": ("world_size", "ranks", "local_world_size"),
            "Several runs": ("sweep", "plot"),
            "The program": (
                "python", "plan", "try_remedies", "steps", "alloc_conf", "real_init",
                "dummy_weights", "values", "assume",
            ),
            "What is written": ("snapshot", "output", "html", "as_json", "force", "quiet"),
        }
    ),
)  # fmt: skip
@flags.program
@click.option(
    "--gpu", metavar="NAME[,...]", help="Of `ullage gpus`, one or more; default: an endless H100."
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="NAME=A,B,...",
    help="Run with each value in place of {NAME}; may be given several times.",
)
@click.option("--plot", type=FILE, metavar="FILE", help="Draw a sweep: .svg, .png or .pdf.")
@flags.memory
@flags.capability
@click.option(
    "--budget",
    metavar="SIZE",
    help="How much of it may be used; beyond that the program runs out of memory.",
)
@click.option("--gpus", type=int, metavar="N", help="How many GPUs, all alike.")
@click.option("--world-size", type=int, metavar="N", help="Play one rank of a job of N ranks.")
@click.option(
    "--rank", "--ranks", "ranks", metavar="R[,...]", help="Which, or 'distinct'; default: 0."
)
@click.option("--local-world-size", type=int, metavar="N", help="Ranks of one node; default: 8.")
@flags.alloc_conf
@click.option("--steps", type=int, metavar="N", help="Stop after N training steps.")
@flags.python
@click.option("--real-init", is_flag=True, help="Really initialise weights on the CPU.")
@flags.dummy_weights
@click.option(
    "--values",
    type=click.Choice(("on", "off")),
    default="on",
    callback=lambda _context, _parameter, value: value == "on",
    help="Whether small values are computed (default: on).",
)
@flags.assume
@click.option(
    "--try-remedies", is_flag=True, help="If memory runs out: run it again with what may help."
)
@click.option("--plan", type=FILE, metavar="FILE", help="Of `ullage fit`: run under this plan.")
@click.option(
    "--snapshot",
    type=FILE,
    metavar="FILE",
    help="The memory snapshot; default: a new name here. Of several ranks, a directory.",
)
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Also write the run document (JSON)."
)
@flags.html
@click.option("--json", "as_json", is_flag=True, help="Print the run document, not the report.")
@flags.force
@flags.quiet_run
def run_command(
    program: tuple[str, ...],
    *,
    gpu: str | None,
    sweep: tuple[str, ...],
    plot: Path | None,
    snapshot: Path | None,
    output: Path | None,
    html: Path | None,
    ranks: str | None,
    as_json: bool,
    quiet: bool,
    force: bool,
    try_remedies: bool,
    **options: Any,  # noqa: ANN401 - handed to api.run as they are named there
) -> int:
    """Run a program on a GPU that is not there: does it fit, what is its peak, who owns it?

    \b
    ullage run --gpu h100-80gb -- train.py --batch-size 16
    ullage run --memory 24GiB -- -m package.train
    ullage run --gpu l4 --sweep batch=1,2,4 -- train.py --batch-size {batch}
    ullage run --world-size 64 --ranks 0,63 -- train_fsdp.py
    ullage run --gpus 4 -- torchrun --nproc-per-node 4 train_ddp.py

    Exits with 0 if it fits, 1 if it does not, 3 if the program failed for a reason of its own.
    """
    shown = Output(is_json=as_json, is_quiet=quiet, path=output, force=force)
    are_many = ranks is not None and not ranks.isdecimal()
    named = (("--output", output), ("--html", html), ("--plot", plot))
    check_files(*named, ("--snapshot", None if are_many else snapshot), force=force)
    gpus = None if gpu is None else gpu.split(",")
    if try_remedies and (sweep or are_many or len(gpus or ()) > 1):
        raise SpecError("--try-remedies is for one run on one GPU; leave it or the others out")
    if sweep or len(gpus or ()) > 1:
        if snapshot is not None:
            raise SpecError("a sweep keeps no snapshots; leave --snapshot out, or run one value")
        if html is not None:
            raise SpecError("--html shows one run; leave it out, or run one value on one GPU")
        _refuse_ranks(ranks, options)
        options |= {"gpu": gpus, "variables": _parse_variables(sweep)}
        return _sweep(program, shown, plot, force=force, **options)
    if plot is not None:
        raise SpecError("--plot draws a sweep; add --sweep NAME=A,B,... or several GPUs")
    if ranks is not None and are_many:
        if snapshot is None and html is not None:  # which is made of snapshots
            snapshot = default_snapshot(program, options["python"]).with_suffix("")
        options |= {"gpu": gpu, "snapshots": snapshot, "force": force}
        return _run_ranks(program, ranks, shown, html, **options)
    options["rank"] = None if ranks is None else int(ranks)
    kept = snapshot or default_snapshot(program, options["python"])
    options |= {"gpu": gpu, "snapshot": kept}
    with shown.progress() as on_progress:
        result = run(
            program, force=force, try_remedies=try_remedies, stdout_to_stderr=as_json,
            on_progress=on_progress, **options,
        )  # fmt: skip
    return result.exit_code if write_run(result, shown, snapshot, html) else UNWRITABLE


def _sweep(
    program: tuple[str, ...],
    output: Output,
    plot: Path | None,
    *,
    force: bool,
    **options: Any,  # noqa: ANN401 - handed to sweeps.sweep as they are named there
) -> int:
    """Several runs: one table."""
    from ullage.api.sweep import sweep
    from ullage.report.page.plot import check_plot

    if plot is not None:
        check_plot(plot)
    with output.progress() as on_progress:
        result = sweep(
            program,
            on_progress=on_progress,
            on_failure=show_failure,
            **options,
        )
    if plot is not None:
        result.plot(plot, force=force)
    return result.exit_code if write_sweep(result, output, plot) else UNWRITABLE


def _run_ranks(
    program: tuple[str, ...],
    ranks: str,
    output: Output,
    html: Path | None,
    *,
    world_size: int | None,
    gpus: int | None,
    **options: Any,  # noqa: ANN401 - handed to ranks.run_ranks as they are named there
) -> int:
    """Several ranks of one job: one report."""
    from ullage.api.ranks import run_ranks
    from ullage.runs.survey import DISTINCT

    if world_size is None:
        raise SpecError(
            "--ranks names ranks of a job; give the number of its ranks: --world-size N"
        )
    if gpus is not None:
        raise SpecError("--gpus is for one process; a rank has the GPUs of --local-world-size")
    numbers = ranks.split(",")
    if ranks != DISTINCT and not all(number.isdecimal() for number in numbers):
        raise SpecError(
            f"--ranks {ranks!r} are not ranks; write, such as: --ranks 0,7 or {DISTINCT}"
        )
    with output.progress() as on_progress:
        result = run_ranks(
            program,
            ranks if ranks == DISTINCT else [int(number) for number in numbers],
            world_size=world_size,
            on_progress=on_progress,
            on_failure=show_failure,
            **options,
        )
    return result.exit_code if write_run(result, output, None, html) else UNWRITABLE


def _refuse_ranks(ranks: str | None, options: dict[str, Any]) -> None:
    """A sweep is over one process on one device."""
    unfit = {"--rank": ranks} | {
        f"--{name.replace('_', '-')}": options.pop(name)
        for name in ("world_size", "local_world_size", "gpus")
    }
    for name, value in unfit.items():
        if value is not None:
            raise SpecError(f"a sweep does not go with {name}; leave one of them out")


def _parse_variables(texts: tuple[str, ...]) -> dict[str, list[str]]:
    """The variables of --sweep."""
    variables: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise SpecError(
                f"--sweep {text!r} gives no values; write, such as: --sweep batch=1,2,4"
            )
        if name in variables:
            raise SpecError(f"--sweep names {name!r} twice; give all its values at once")
        variables[name] = values.split(",")
    return variables
