"""`ullage explain --what-if`: what other settings of the allocator would have reserved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from ullage.cli.main import ANSWER_IS_NO
from ullage.cli.output import Output


def check_options(
    *, is_what_if: bool, only_with: Mapping[str, object], not_with: Mapping[str, object]
) -> None:
    """Raises click.UsageError for an option that would go unheard.

    only_with, not_with: the values of options that --what-if needs, or has no use for, by name.
    """
    for name, value in (not_with if is_what_if else only_with).items():
        if value is not None:
            how = "does not go with" if is_what_if else "is of use only with"
            raise click.UsageError(f"{name} {how} --what-if")


def show_what_if(
    file: Path, output: Output, *, gpu: str | None, memory: str | None, python: str | None
) -> int:
    """Replays a snapshot and shows what came of it; the exit code is 1 where a GPU was chosen and
    no setting that may be used has memory for it all.
    """
    from ullage.api.what_if import what_if
    from ullage.report.text.what_if import what_if_blocks

    result = what_if(file, gpu=gpu, memory=memory, python=python)

    exit_code = 0 if result.report.has_room else ANSWER_IS_NO
    return output.give(result, what_if_blocks(result.report), exit_code=exit_code)
