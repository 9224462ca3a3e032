"""The demands of a scenario on the operating system, checked before anything starts: its words, its
variables, where and how long it runs, and which files it depends on.
"""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

from ullage.ground.config.tables import read_words
from ullage.ground.files import is_directory
from ullage.ground.protocol.plain import Misfit, show

_NOWHERE = "/dev/null"  # a pattern is tried where nothing can match


def read_command(value: object) -> tuple[str, ...]:
    """A list of words, or a text that is split as a shell would."""
    words = read_words(value)
    try:
        return tuple(shlex.split(words[0])) if isinstance(value, str) else words
    except ValueError as error:
        raise Misfit(f"cannot be split into words: {error}") from None


def check_directory(path: Path) -> Path:
    """A directory that is there."""
    if not is_directory(path):
        raise Misfit(f"is {str(path)!r}, and there is no such directory")
    return path


def check_variable(name: str) -> str:
    """The name of a variable, as an operating system takes it."""
    if not name or "=" in name or "\0" in name:
        raise Misfit("is not a variable; expected a name without = and NUL, such as SEED")
    return name


def check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns of files below the scenario's directory."""
    for pattern in patterns:
        try:
            is_below = not Path(pattern).is_absolute()
            list(Path(_NOWHERE).glob(pattern))
        except (ValueError, NotImplementedError, IndexError):
            is_below = False
        if not is_below:
            raise Misfit(
                f"has {pattern!r}, which is not a pattern of files below the scenario's directory; "
                'write, for example: inputs = ["data/*.bin"]'
            )
    return patterns


def read_values(value: object) -> tuple[str, ...]:
    """The values of a variable of the matrix."""
    if not isinstance(value, list) or not value:
        raise Misfit(f"is {show(value)}; expected a list, such as: [1, 2, 4]")
    values = read_words(value)
    twice = next((value for value, count in Counter(values).items() if count > 1), None)
    if twice is not None:
        raise Misfit(f"has {twice!r} twice; give each value once")
    return values
