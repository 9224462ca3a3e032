"""`ullage run --ranks`: several ranks of one job, in one report."""

from __future__ import annotations

from ullage.api.run import default_snapshot
from ullage.cli.options.run import RunOptions
from ullage.cli.output import UNWRITABLE, show_failure, write_run
from ullage.errors import SpecError


def run_many_ranks(options: RunOptions) -> int:
    """Runs the program once for each of the ranks, or for those that differ.

    Raises:
        SpecError: the ranks cannot be read, or an option does not go with them.
    """
    from ullage.api.ranks import run_ranks

    if options.world_size is None:
        raise SpecError(
            "--ranks names ranks of a job; give the number of its ranks: --world-size N"
        )
    if options.gpus is not None:
        raise SpecError("--gpus is for one process; a rank has the GPUs of --local-world-size")
    ranks = _parse_ranks(options.ranks or "")
    directory = options.snapshot
    if directory is None and options.html is not None:  # the page is made from the snapshots
        directory = default_snapshot(options.program, options.python).with_suffix("")
    output = options.target
    with output.progress() as on_progress:
        result = run_ranks(
            options.program,
            ranks,
            world_size=options.world_size,
            local_world_size=options.local_world_size,
            gpu=options.gpu,
            memory=options.memory,
            capability=options.capability,
            budget=options.budget,
            python=options.python,
            snapshots=directory,
            force=options.force,
            on_progress=on_progress,
            on_failure=show_failure,
            price=options.price,
            **options.of_program,
        )
    is_written = write_run(result, output, None, options.html, options.timeline)
    return result.exit_code if is_written else UNWRITABLE


def _parse_ranks(text: str) -> list[int] | str:
    """The numbers of the ranks, or "distinct"."""
    from ullage.runs.survey import DISTINCT

    numbers = text.split(",")
    if text == DISTINCT:
        return DISTINCT
    if not all(number.isdecimal() for number in numbers):
        raise SpecError(
            f"--ranks {text!r} are not ranks; give numbers or {DISTINCT}, for example: --ranks 0,7"
        )
    return [int(number) for number in numbers]
