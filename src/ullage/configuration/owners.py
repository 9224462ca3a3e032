"""Whose a file is that was searched for and not named: what it says may be run."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from ullage.errors import SpecError


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
            why = f"belongs to {_name(status.st_uid)}"
        elif _is_open(status):
            why = "can be written to by others"
        if why is not None:
            raise SpecError(
                f"{str(path)!r} {why}, who may have commands run by it; it was searched for, not "
                f"named: if you trust it, give --config {str(file)!r}"
            )


def _is_open(status: os.stat_result) -> bool:
    """Whether others than the owner may change it; in a sticky directory nobody changes what is
    another's.
    """
    mode = status.st_mode
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return False
    is_of_group = mode & stat.S_IWGRP and not _is_own_group(status.st_gid, status.st_uid)
    return bool(mode & stat.S_IWOTH or is_of_group)


def _is_own_group(group: int, user: int) -> bool:
    """Whether only the user is in a group, as by the custom of a group for each user."""
    try:
        name, _, _, members = grp.getgrgid(group)
    except KeyError:
        name, members = "", []
    is_named_alike = group in (0, user) or name == _name(user)
    return is_named_alike and set(members) <= {_name(user), "root"}


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
