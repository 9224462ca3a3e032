"""`ullage fit --max-batch` and `--largest`: the largest batch, or other size, that fits."""

from __future__ import annotations

from ullage.cli.options.fit import FitOptions
from ullage.cli.output import save_plan, show_failure
from ullage.errors import SpecError


def chosen_variable(options: FitOptions) -> str | None:
    """The variable whose largest value is asked for; None: none is.

    Raises:
        SpecError: two are asked for, or how to look for one, and none.
    """
    if options.max_batch and options.largest is not None:
        raise SpecError("--max-batch is --largest batch; give one of them")
    variable = "batch" if options.max_batch else options.largest
    if variable is None and options.multiple_of is not None:
        raise SpecError("--multiple-of says how to look for the largest size; add --max-batch")
    return variable


def fit_largest(options: FitOptions, variable: str) -> int:
    """Finds the largest size, shows it, writes its plan, and says what to exit with.

    Raises:
        SpecError: an option does not go with the others.
    """
    options.check_goes_with("--max-batch and --largest")
    from ullage.api.largest import find_largest
    from ullage.report.text.largest import largest_blocks

    target = options.target
    with target.progress() as on_progress:
        largest = find_largest(
            options.program,
            variable,
            multiple_of=1 if options.multiple_of is None else options.multiple_of,
            allow=options.allow,
            on_progress=on_progress,
            on_failure=show_failure,
            **options.of_search,
            **options.of_program,
        )
    files = save_plan(largest.plan, options.output, force=options.force)
    return target.give(largest, largest_blocks(largest.report), files, exit_code=largest.exit_code)
