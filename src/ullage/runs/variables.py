"""Variables in the words of a program: "{batch}" is a placeholder for the values of batch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ullage.errors import SpecError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_variable(name: str, program: Sequence[str]) -> None:
    """Raises SpecError where a variable has no good name, or no place in the program's words."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} is not a name for a variable; expected letters, digits and _, such as batch"
        )
    if not any(_placeholder(name) in word for word in program):
        raise SpecError(
            f"no word of the program has {_placeholder(name)}; write it where the values of "
            f"{name} go, such as: -- train.py --{name} {_placeholder(name)}"
        )


def _placeholder(name: str) -> str:
    return f"{{{name}}}"


def fill_in(word: str, values: Sequence[tuple[str, str]]) -> str:
    """A word with its variables' values; other braces are the program's own."""
    values_by_name = dict(values)
    return re.sub(r"\{(\w+)\}", lambda match: values_by_name.get(match[1], match[0]), word)
