"""TOML and JSON of anybody's: whatever is wrong with a text is a ValueError with a sentence.

The readers of Python's library raise other errors too: RecursionError for a text that nests deeply,
and one that names a setting of the interpreter for a number of thousands of digits.

    parse_toml("[scenario.train]")
    parse_json('{"schema": "ullage.plan/1"}')
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

__all__ = ["MAX_NUMBER", "parse_json", "parse_toml", "show_value"]

# The largest number of 64 bits; no size and no count is larger.
MAX_NUMBER: Final = 2**63 - 1
_MAX_DEPTH: Final = 100
_MAX_SHOWN: Final = 200


def parse_toml(text: str) -> dict[str, Any]:
    """The document of a text.

    Raises:
        ValueError: it is no TOML, nests more than 100 deep, or holds a number that no 64 bits hold.
    """
    with _in_one_sentence():
        document = tomllib.loads(text)
    _check(document, 0)
    return document


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - whatever the text holds
    """The value of a text.

    Raises:
        ValueError: it is no JSON, nests more than 100 deep, or holds a number that no 64 bits hold,
            NaN or an infinity.
    """
    with _in_one_sentence():
        value = json.loads(text, parse_constant=_refuse_constant)
    _check(value, 0)
    return value


def show_value(value: object) -> str:
    """A value in an error message: Python's own text of it, cut off where it is long."""
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
            raise ValueError(_TOO_LARGE) from None
        raise


_TOO_DEEP: Final = f"it nests values more than {_MAX_DEPTH} deep"
_TOO_LARGE: Final = "it holds a number that no 64 bits hold"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is no number of JSON")


def _check(value: object, depth: int) -> None:
    """Raises ValueError where a value nests deeper, or a number is larger, than anything real."""
    if depth > _MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, Mapping):
        for member in value.values():
            _check(member, depth + 1)
    elif isinstance(value, list):
        for member in value:
            _check(member, depth + 1)
    elif isinstance(value, int | float) and not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise ValueError(_TOO_LARGE)
