"""Parses untrusted TOML and JSON; every problem is a ValueError with a one-sentence message.

Python's own parsers also raise other errors: RecursionError for deep nesting, and for a number with
thousands of digits an error that names a setting of the interpreter.

    parse_toml("[scenario.train]")
    parse_json('{"schema": "ullage.plan/1"}')
"""

from __future__ import annotations

import errno
import json
import math
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

# The largest signed 64-bit integer; no size and no count is larger.
MAX_NUMBER: Final = 2**63 - 1
_MAX_DEPTH: Final = 100
_MAX_SHOWN: Final = 200
_MOST_BYTES: Final = 64 * 2**20
_MOST_CHARS: Final = 64 * 1024  # of a value: some of Python's own readers take the square of it


class Unfit(ValueError):
    """A value that nothing of ours can be: the problem follows the name of the value, or "it", and
    its keys are those of the tables around it, from the outermost on; None: it is the whole.
    """

    def __init__(self, problem: str, *keys: Any) -> None:  # noqa: ANN401 - of a parsed document
        super().__init__(f"it {problem}")
        self.problem, self.keys = problem, keys


def read_bounded(path: Path) -> str:
    """The text of a file, which may be a device without an end.

    Raises:
        OSError: it cannot be read, or has more than 64 MiB.
        ValueError: it is not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES >> 20} MiB", str(path))
    return content.decode()


def parse_toml(text: str) -> dict[str, Any]:
    """Parses a TOML document.

    Raises:
        ValueError: it is not TOML, too deep, or has a text or a number that is too large, or nan.
    """
    with _in_one_sentence():
        document = tomllib.loads(text)
    check_values(document, _MOST_CHARS)
    return document


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - whatever the text holds
    """Parses a JSON value.

    Raises:
        ValueError: it is not JSON, nests more than 100 deep, or has a number beyond 64 bits, NaN or
            an infinity.
    """
    with _in_one_sentence():
        value = json.loads(text, parse_constant=_refuse_constant)
    check_values(value)
    return value


def check_values(value: object, most_chars: int = _MOST_BYTES, depth: int = 0) -> None:
    """Accepts what was parsed.

    Raises:
        ValueError: it nests more than 100 deep, or a number or a text in it is too large, or nan.
    """
    if isinstance(value, dict | list) and value and depth >= _MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    rows = enumerate(value) if isinstance(value, list) else ((None, value),)
    for key, member in value.items() if isinstance(value, dict) else rows:
        if isinstance(member, dict | list):
            try:
                check_values(member, most_chars, depth + 1)
            except Unfit as unfit:
                raise Unfit(unfit.problem, key, *unfit.keys) from None
        elif isinstance(member, str) and len(member) > most_chars:
            many = f"holds a text of {len(member)} characters"
            raise Unfit(f"{many}; expected {most_chars} or fewer", key)
        elif isinstance(member, int | float) and not -MAX_NUMBER <= member <= MAX_NUMBER:
            is_large = isinstance(member, int) or math.isfinite(member)
            raise Unfit(_TOO_LARGE if is_large else f"holds {member}, not a finite number", key)


def show_value(value: object) -> str:
    """Formats a value for an error message: its repr, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise Unfit(_TOO_LARGE) from None
        raise


_TOO_DEEP: Final = f"it nests values more than {_MAX_DEPTH} deep"
_TOO_LARGE: Final = "holds a number that no 64 bits hold"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not a number of JSON")
