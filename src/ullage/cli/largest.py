"""`ullage fit --max-batch`: the largest batch, or other size, that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ullage.cli.output import UNWRITABLE, Output, save_plan, show_failure, write_result
from ullage.errors import SpecError

# Of the options of `ullage fit`: what each is where it is not given. They ask for something else.
_OTHERS: Mapping[str, object] = {
    "objective": "time", "smallest_gpu": False, "html": None, "gpus": 1, "ray": None,
    "minutes": None,
}  # fmt: skip


def chosen_variable(largest: str | None, *, is_batch: bool, multiple_of: int | None) -> str | None:
    """The variable whose largest value is asked for; None: none is.

    Raises:
        SpecError: two are asked for, or how to look for one, and none.
    """
    if is_batch and largest is not None:
        raise SpecError("--max-batch is --largest batch; give one of them")
    variable = "batch" if is_batch else largest
    if variable is None and multiple_of is not None:
        raise SpecError("--multiple-of says how to look for the largest size; add --max-batch")
    return variable


def fit_largest(
    program: Sequence[str],
    variable: str,
    shown: Output,
    output: Path | None,
    options: Mapping[str, Any],
) -> int:
    """Finds the largest size, shows it, writes its plan, and says what to exit with.

    Raises:
        SpecError: an option does not go with the others.
    """
    wanted = {name: value for name, value in options.items() if value is not None}
    for name, default in _OTHERS.items():
        if wanted.pop(name, default) != default:
            flag = name.replace("_", "-")
            raise SpecError(f"--{flag} does not go with --max-batch and --largest; leave it out")
    from ullage.api.largest import find_largest
    from ullage.report.text.largest import largest_line, print_largest

    with shown.progress() as on_progress:
        largest = find_largest(
            program, variable, on_progress=on_progress, on_failure=show_failure, **wanted
        )
    is_written = write_result(
        shown,
        lambda: largest.document,
        lambda: shown.show(largest.report, largest_line, print_largest),
        save_plan(largest.plan, output, force=shown.force),
    )
    return largest.exit_code if is_written else UNWRITABLE
