"""Variables in the words of a program: "{batch}" is a placeholder for the values of batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ullage.ground.errors import SpecError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# More is a mistake, such as a range that was meant to be one variable.
MAX_RUNS = 4096


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


def only_variable(program: Sequence[str]) -> str:
    """The one name in braces; raises SpecError where there is none, or several."""
    names = sorted({match[1] for word in program for match in re.finditer(r"\{(\w+)\}", word)})
    if len(names) != 1:
        raise SpecError(
            f"found {', '.join(names) or 'no name'} in braces; expected one, where the size goes, "
            "such as: -- train.py --batch {batch}; of several --vary names it"
        )
    return names[0]


def _placeholder(name: str) -> str:
    return f"{{{name}}}"


def check_number(num_runs: int) -> None:
    """Raises SpecError where the values of variables make too many runs."""
    if num_runs > MAX_RUNS:
        raise SpecError(
            f"that is {num_runs:,} runs; expected {MAX_RUNS:,} or fewer; give fewer values"
        )


def fill_in(word: str, values: Mapping[str, str]) -> str:
    """A word with its variables' values; other braces are the program's own."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), word)
