"""Finds and reads the file that holds the configuration: ullage.toml, or [tool.ullage] of
pyproject.toml.

    opened = open_configuration(Path.cwd())     # None: there is none here or above
    source, table = read_configuration(Path("ullage.toml"))
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.ground.errors import SpecError
from ullage.ground.files import is_file, may_others_write, user_name
from ullage.ground.parsing import parse_toml, read_bounded
from ullage.ground.printable import printable
from ullage.ground.protocol.plain import Misfit, show

if TYPE_CHECKING:
    from ullage.ground.config.tables import Source


# Whose a file is that was searched for and not named: what it says may be run.


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


CONFIG_NAME = "ullage.toml"
PROJECT_NAME = "pyproject.toml"
_AROUND = ("tool", "ullage")
_TABLE = "[tool.ullage.scenario.train]"


def open_configuration(
    start: Path, path: Path | None = None
) -> tuple[Source, Mapping[str, Any]] | None:
    """The settings of ullage in a file: one that was named, or the one that is found; None: there
    is none. Errors are those of `find_configuration` and `read_configuration`.
    """
    file = path or find_configuration(start.absolute())
    return None if file is None else read_configuration(file)


def find_configuration(start: Path) -> Path | None:
    """The configuration of a directory, or of the nearest one above that has one.

    Raises:
        SpecError: a directory has two, or somebody else may have written it.
    """
    for directory in (start, *start.parents):
        own, project = directory / CONFIG_NAME, directory / PROJECT_NAME
        has_table = is_file(project) and _has_table(project)
        if has_table and is_file(own):
            raise SpecError(
                f"both {own} and [tool.ullage] in {project} are there; keep one of them"
            )
        if is_file(own) or has_table:
            file = own if is_file(own) else project
            refuse_foreign(file)
            return file
    return None


def _has_table(project: Path) -> bool:
    """True if a pyproject.toml has our table; True where it cannot be parsed and might have it."""
    try:
        text = read_bounded(project)
    except UnicodeDecodeError as error:
        return b"tool.ullage" in error.object
    except OSError:
        return False
    if not re.search(r"\bullage\b", text):
        return False
    try:
        tool = parse_toml(text).get(_AROUND[0])
    except ValueError:
        return "tool.ullage" in text
    return isinstance(tool, dict) and _AROUND[1] in tool


def read_configuration(path: Path) -> tuple[Source, Mapping[str, Any]]:
    """Reads the settings of ullage in a file.

    Raises:
        SpecError: it cannot be read, or it is not TOML.
    """
    from ullage.ground.config.tables import Source  # most directories have no such file

    try:
        source = Source(path.absolute(), read_bounded(path))
    except UnicodeDecodeError as error:
        raise SpecError(f"{str(path)!r} cannot be read: it is not UTF-8 ({error})") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{str(path)!r} cannot be read: {error}") from None
    try:
        document = source.parse()
    except ValueError as error:
        raise SpecError(f"{printable(path.name)}: {_explain_syntax(str(error))}") from None
    around = _AROUND if path.name == PROJECT_NAME else ()
    table: object = document
    for depth, key in enumerate(around, start=1):
        table = table.get(key, {}) if isinstance(table, dict) else table
        if not isinstance(table, dict):
            with source.at(*around[:depth]):
                raise Misfit(f"is {show(table)}; expected a table: {_TABLE}")
    return replace(source, around=around), table if isinstance(table, dict) else {}


def _explain_syntax(message: str) -> str:
    """Explains the error of tomllib; a repeated table is a repeated scenario."""
    twice = re.search(r"Cannot declare \((?:.*?, )?'scenario', '([^']+)'\) twice", message)
    if twice is None:
        return message
    where = message[message.rfind("(") :]
    return f"there are two scenarios {twice[1]!r} {where}; give one of them another name"
