"""`ullage fit --ladder`: the plans that a guard goes to, each proved for sizes of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.cli.options.fit import FitOptions
from ullage.cli.output import show_failure
from ullage.errors import SpecError

if TYPE_CHECKING:
    from ullage.api.largest import FoundLadder


def fit_ladder(options: FitOptions, ladder: str) -> int:
    """Finds the rungs, shows them, writes their file, and says what to exit with.

    Args:
        ladder: "length=512,1024,2048".

    Raises:
        SpecError: an option does not go with the others, or the sizes cannot be read.
    """
    options.check_goes_with(
        "--ladder",
        ("--max-batch", options.max_batch),
        ("--largest", options.largest is not None),
        ("--multiple-of", options.multiple_of is not None),
        ("--allow", options.allow != "same"),
    )
    variable, sizes = _read(ladder)
    from ullage.api.largest import find_ladder
    from ullage.report.text.ladder import ladder_blocks

    target = options.target
    with target.progress() as on_progress:
        result = find_ladder(
            options.program,
            variable,
            sizes,
            on_progress=on_progress,
            on_failure=show_failure,
            **options.of_search,
            **options.of_program,
        )

    return target.give(
        result, ladder_blocks(result.report), _write(result, options),
        exit_code=result.exit_code,
    )  # fmt: skip


def _write(result: FoundLadder, options: FitOptions) -> list[object]:
    """Writes the file, unless the program failed."""
    if options.output is None or result.report.failure:
        return []
    result.ladder.save(options.output, force=options.force)
    return [options.output]


def _read(ladder: str) -> tuple[str, list[int]]:
    """The variable and its sizes."""
    variable, _, rest = ladder.partition("=")
    words = [word.strip() for word in rest.split(",")]
    if not all(word.isdecimal() for word in words):
        raise SpecError(
            f"--ladder {ladder!r} is not possible; write the variable and its sizes, from small to "
            "large, such as length=512,1024,2048"
        )
    return variable.strip(), [*map(int, words)]
