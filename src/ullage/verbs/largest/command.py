"""`ullage largest`: finds the largest batch, or other size, with which a program fits."""

from __future__ import annotations

from dataclasses import replace

from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import Output, show_failure
from ullage.verbs.largest.options import LargestOptions


@command(
    most_used=("gpu", "python", "allow", "output"),
    says={"output": "Write the plan to this file, for example plan.json."},
)
def largest_command(options: LargestOptions, output: Output) -> int:
    """Search for the largest batch, or other size, with which a program fits, on a simulated GPU.

    \b
    ullage largest --gpu rtx-4090 -- train.py --batch-size {batch}
    ullage largest --gpu l4 --allow none --multiple-of 8 -- train.py --length {length}

    The size goes where a word of the program has a name in braces.

    Exits with 0 if a size fits, as it is or under a plan, 1 if none does, 3 if the program failed.
    """
    from ullage.verbs.largest.function import largest

    output.check()
    with output.progress() as on_progress:
        result = largest.act(replace(options, on_progress=on_progress, on_failure=show_failure))
    files = () if result.plan is None else output.output
    for path in files:
        if result.plan is not None:
            result.plan.save(path, force=output.force)
    return replace(output, output=()).give(result, files)
