"""`ullage fit`: finds the fastest plan under which a program fits."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.cli.ladder import fit_ladder
from ullage.cli.largest import chosen_variable, fit_largest
from ullage.cli.options import flags
from ullage.cli.options.fit import FitOptions
from ullage.cli.output import check_files, show_failure
from ullage.errors import SpecError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ullage.api.fit import Fit


@click.command(
    "fit",
    context_settings={"allow_interspersed_args": False},
    cls=flags.in_sections(
        {
            "Most used": ("gpu", "python", "allow", "max_batch", "output"),
            "GPU": ("gpus", "memory", "capability", "budget"),
            "Search": (
                "objective", "price", "largest", "multiple_of", "ladder", "smallest_gpu", "minutes",
            ),
            "Runs": ("steps", "alloc_conf", "dummy_weights", "assume", "measured", "executor"),
            "Output": ("html", "as_json", "force", "quiet"),
        }
    ),
)  # fmt: skip
@flags.program
@click.option("--gpu", metavar="NAME", help="GPU to fit into (see `ullage gpus`).")
@flags.memory
@flags.capability
@click.option("--budget", metavar="SIZE", help="Memory that the program may use; default: all.")
@click.option(
    "--allow",
    type=click.Choice(("none", "same", "rounding", "training")),
    default="same",
    help="What techniques may change: memory only (same, the default), rounding too, or the "
    "training itself; none: use no techniques.",
)
@click.option(
    "--objective",
    type=click.Choice(("time", "cost", "memory")),
    default="time",
    help="The fastest plan that fits (default), the cheapest, or the one that needs least memory.",
)
@click.option(
    "--price",
    type=float,
    metavar="DOLLARS",
    help="Price of a GPU-hour: what the steps and tokens of each plan cost.",
)
@click.option("--smallest-gpu", is_flag=True, help="Also find the smallest GPU that fits.")
@click.option("--max-batch", is_flag=True, help="Find the largest {batch} instead of a plan.")
@click.option(
    "--largest",
    metavar="NAME",
    help="Find the largest value of {NAME} instead, for example length.",
)
@click.option("--multiple-of", type=int, metavar="N", help="Try only multiples of N.")
@click.option(
    "--ladder",
    metavar="NAME=SIZES",
    help="Find the plans of a guard instead, each proved for sizes: length=512,1024,2048.",
)
@click.option("--gpus", type=int, default=1, metavar="N", help="Train on N such GPUs.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Stop the search after N minutes and report the best plan so far; default: 15.",
)
@click.option(
    "--executor",
    metavar="MODULE:NAME",
    help="Have the workers of an executor make the runs: a function that makes it.",
)
@flags.alloc_conf
@flags.search_steps
@flags.python
@flags.dummy_weights
@flags.assume
@flags.measured
@flags.plan_output
@flags.html
@flags.as_json
@flags.force
@flags.quiet_run
@flags.as_record(FitOptions)
def fit_command(options: FitOptions) -> int:
    """Search for the fastest plan under which a program fits, and run it on a simulated GPU.

    \b
    ullage fit --gpu rtx-4090 -o plan.json -- train.py --batch-size 16
    ullage run --gpu rtx-4090 --plan plan.json -- train.py --batch-size 16
    ullage exec --plan plan.json -- train.py --batch-size 16
    ullage fit --gpu rtx-4090 --max-batch -- train.py --batch-size {batch}
    ullage fit --gpu l4 --ladder n=8,16,32 -o ladder.json -- train.py --batch {n}

    Exits with 0 if the program fits, without or under a plan, 1 if no plan fits, 3 if the program
    itself failed, 130 if the search was interrupted: it still reports the best plan so far.
    """
    target = options.target
    _check_output(options.program, options.output, force=options.force)
    check_files(("--output", options.output), ("--html", options.html), force=options.force)
    if options.ladder is not None:
        return fit_ladder(options, options.ladder)
    variable = chosen_variable(options)
    if variable is not None:
        return fit_largest(options, variable)
    from ullage.api.fit import fit
    from ullage.report.text.fit import fit_blocks

    with (
        target.progress(has_lines=True) as on_progress,
        _executor(options.executor) as executor,
    ):
        result = fit(
            options.program,
            allow=options.allow,
            objective=options.objective,
            price=options.price,
            smallest_gpu=options.smallest_gpu,
            gpus=options.gpus,
            executor=executor,
            limit_s=options.limit_s,
            on_progress=on_progress,
            on_failure=show_failure,
            **options.of_search,
            **options.of_program,
        )
    return target.give(
        result, fit_blocks(result.report), _write_files(result, options),
        html=options.html, exit_code=result.exit_code,
    )  # fmt: skip


@contextmanager
def _executor(name: str | None) -> Iterator[Executor | None]:
    """The executor that a function of the user's makes, until the search ends; None without one."""
    if name is None:
        yield None
        return
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
    try:
        executor = pkgutil.resolve_name(name)()
        if not hasattr(executor, "submit"):
            raise TypeError(f"it made {executor!r}, which has no submit()")
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise SpecError(
            f"--executor {name}: {type(error).__name__}: {error}; expected a function without "
            "arguments that makes an executor, such as concurrent.futures:ProcessPoolExecutor"
        ) from None
    with ExitStack() as stack:
        if hasattr(executor, "shutdown"):  # submitit's has nothing to shut down
            stack.callback(executor.shutdown)
        yield executor


def _check_output(program: tuple[str, ...], output: Path | None, *, force: bool) -> None:
    """Raises SpecError where a file is asked for that the program has no use for, or where that
    which goes beside it cannot be written.
    """
    if output is None or output.suffix not in {".yaml", ".yml"}:
        return
    if not {"launch", "accelerate.commands.launch"} & set(program[:3]):
        raise SpecError(
            f"{str(output)!r} would be a configuration of Accelerate, and the program is not "
            "started by `accelerate launch`; start it so, or name the plan plan.json"
        )
    check_files(("--output", _plan_beside(output)), force=force)


def _plan_beside(output: Path) -> Path:
    """Where a plan goes that says what a launcher's configuration cannot."""
    return output.with_suffix(".plan.json")


def _write_files(result: Fit, options: FitOptions) -> list[object]:
    """The plan, one that changes nothing where none is needed."""
    from ullage.files import write_text

    files: list[object] = []
    best, output, force = result.report.best, options.output, options.force
    configuration = "" if best is None else best.configuration
    if output is not None and configuration:
        files.append(write_text(configuration, output, force=force))
    plan = result.plan if configuration else result.plan_to_write
    if output is not None and plan is not None:
        path = _plan_beside(output) if configuration else output
        plan.save(path, force=force)
        files.append(path)
    return files
