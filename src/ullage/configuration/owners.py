"""Whose a file is that was searched for and not named: what it says may be run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ullage.errors import SpecError
from ullage.files import may_others_write, user_name


def refuse_foreign(file: Path) -> None:
    """Raises SpecError if a file, or its directory, belongs to neither the user nor root, or if
    others may write to it.
    """
    for path, status in (
        (file, file.lstat()),
        (file, file.stat()),
        (file.parent, file.parent.stat()),
    ):
        why = None
        if status.st_uid not in (0, os.geteuid()):
            why = f"belongs to {user_name(status.st_uid)}"
        elif _is_open(status):
            why = "can be written to by others"
        if why is not None:
            raise SpecError(
                f"{str(path)!r} {why}, who may have commands run by it; it was searched for, not "
                f"named: if you trust it, give --config {str(file)!r}"
            )


def _is_open(status: os.stat_result) -> bool:
    """True if others may change it; in a sticky directory nobody changes what is another's."""
    is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return not (stat.S_ISLNK(status.st_mode) or is_sticky) and may_others_write(status)
