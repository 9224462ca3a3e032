"""Tables of TOML as frozen dataclasses: the types that their fields have, and errors that name the
file, the line, the key, what was found and what was expected.

    @dataclass(frozen=True, slots=True)
    class Engine:
        name: Annotated[str, Mark.NAME]
        cache_bytes: Annotated[Size, As("cache"), Example('"40GiB"')]
        max_requests: Count = 256

    source.read(Mapping[Name, Engine], ("front", "engine"), table)
    with source.at("front", "engine"):      # what is wrong only together
        raise Misfit("has none; write one", ...)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NewType, TypeAlias, TypeVar

from ullage.ground.errors import SpecError
from ullage.ground.parsing import Unfit, parse_toml
from ullage.ground.printable import printable
from ullage.ground.protocol.option import Program
from ullage.ground.protocol.plain import EMPTY, From, Misfit, Reader, at_least, read_at, show
from ullage.ground.units import parse_bytes

# On which line of a TOML file a key stands, which Python's reader does not say.

# What stands for a key is no longer than this, and neither is it looked for further.
_MAX_CHARS = 1000
_HEADER = re.compile(r"\s*(\[\[?)(?P<keys>[^\[\]]+)\]\]?\s*(#.*)?$")
_ASSIGNED = re.compile(r"""\s*(?P<keys>(?:[^"'=#\[\]{},]|"[^"]*"|'[^']*')+?)\s*=""")


def find_line(text: str, path: tuple[str, ...]) -> int:
    """The line of a key, counted from 1; that of the nearest table around it where it has none."""
    table: tuple[str, ...] = ()
    best, best_line = 0, 1
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line[:_MAX_CHARS])
        assigned = _ASSIGNED.match(line[:_MAX_CHARS])
        if header:
            table = keys = _keys(header["keys"])
        elif assigned:
            keys = (*table, *_keys(assigned["keys"]))
        else:
            continue
        depth = len(keys)
        if depth > best and keys == path[:depth]:
            best, best_line = depth, number
    return best_line


def _keys(text: str) -> tuple[str, ...]:
    """The parts of a dotted key; none where that is none, as inside a text of several lines."""
    try:
        value: object = parse_toml(f"{text} = 0")
    except ValueError:
        return ()
    keys = []
    while isinstance(value, dict):
        key, value = next(iter(value.items()))
        keys.append(key)
    return tuple(keys)


T = TypeVar("T")
_NAMES: Final = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list",
    dict: "a table",
}  # fmt: skip
_PERCENT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|d)", re.ASCII)
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_MAX_S: Final = 30 * 86_400.0
_MAX_SHARE: Final = 10.0


@dataclass(frozen=True, slots=True)
class Source:
    """A file of TOML, the tables in it `around` what is ullage's, and its name in errors; "": that
    of the file.
    """

    path: Path
    text: str
    around: tuple[str, ...] = ()
    name: str = ""

    def read(self, kind: type[T], keys: tuple[str, ...], value: object, /, **given: object) -> T:
        """The value at these keys, as this type; raises SpecError where it is something else. Paths
        begin at the file's directory; `given` are fields that are not in the file.
        """
        with self.at(*keys):
            return _make_reader(self.path.parent).read(kind, value, **given)

    @contextmanager
    def at(self, *keys: str) -> Iterator[None]:
        """Gives what does not fit in the table at these keys its name, its file and its line."""
        try:
            yield
        except Misfit as misfit:
            misfit.keys = (*keys, *misfit.keys)
            raise self._error(misfit) from None

    def _error(self, misfit: Misfit) -> SpecError:
        place = (*misfit.keys, misfit.inner) if misfit.inner is not None else misfit.keys
        line = find_line(self.text, (*self.around, *(key for key in place if isinstance(key, str))))
        sentence = misfit.say("" if misfit.keys else "the file")
        if misfit.problem.endswith(_NAMES[dict]):
            sentence += f": [{'.'.join(map(str, misfit.keys))}]"
        name = printable(self.name or self.path.name)
        return SpecError(f"{name}:{line}: {printable(sentence)}")

    def parse(self) -> dict[str, Any]:
        """The document; raises SpecError for nan or what is too large, ValueError for no TOML."""
        try:
            return parse_toml(self.text)
        except Unfit as unfit:
            raise self._error(Misfit(unfit.problem, *unfit.keys)) from None

    def line(self, *keys: str) -> int:
        """Where a table begins."""
        return find_line(self.text, (*self.around, *keys))


def parser(parse: Callable[[Any], T]) -> Callable[[Any], T]:
    """Lets a function that raises SpecError read a value."""

    def read(value: object) -> T:
        try:
            return parse(value)
        except SpecError as error:
            raise Misfit(f": {error}") from None

    return read


def name_with(more: str, most: int) -> Callable[[str], str]:
    """Refuses what is not a name of at most this many letters, digits, _, - and these."""

    def check(text: str) -> str:
        if not re.fullmatch(f"[A-Za-z0-9_{more}-]{{1,{most}}}", text):
            signs = " ".join(f"_{more}-")
            raise Misfit(
                f"is not a name; expected up to {most} letters, digits, and any of {signs}"
            )
        return text

    return check


def _check_text(text: str) -> str:
    if not text.strip():
        raise Misfit(EMPTY)
    return _without_nul(text)


def _without_nul(text: str) -> str:
    """At a NUL the operating system would end a text."""
    if "\0" in text:
        raise Misfit("holds the character NUL, at which a text would end; remove it")
    return text


def _word(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Misfit(f"is {show(value)}; expected a text or a number")
    return _without_nul(str(value))


def read_words(value: object) -> tuple[str, ...]:
    """A text, or a list of texts and numbers, as texts."""
    if isinstance(value, str):
        return (_check_text(value),)
    if not isinstance(value, list):
        raise Misfit(f"is {show(value)}; expected a text or a list")
    return tuple(read_at(number, _word, member) for number, member in enumerate(value))


def read_seconds(value: str | float) -> float:
    """A time of up to 30 days: "10min", or its seconds."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else value
    if isinstance(seconds, str) or not 0 <= seconds <= _MAX_S:
        raise Misfit(f'is {value!r}; expected a time of up to 30 days, such as "10min"')
    return seconds


def read_share(value: str | float) -> float:
    """A share: "95%" or 0.95."""
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    share = float(match[1]) / 100 if match else value
    if isinstance(share, str) or not 0 <= share <= _MAX_SHARE:
        raise Misfit(f'is {value!r}; expected a share, such as "95%" or 0.95')
    return share


def check_positive(value: float) -> float:
    """Refuses 0 and less."""
    if value <= 0:
        raise Misfit(f"is {value:g}; expected a number above 0")
    return value


Whole: TypeAlias = Annotated[int, at_least(0)]
Count: TypeAlias = Annotated[int, at_least(1)]
Positive: TypeAlias = Annotated[float, check_positive]
Size: TypeAlias = Annotated[int, From(str | int), parser(parse_bytes)]
Seconds: TypeAlias = Annotated[float, From(str | float), read_seconds]
Share: TypeAlias = Annotated[float, From(str | float), read_share]
# A text that may be empty, or a number as a text; a list of these, or only one of them.
Word: TypeAlias = Annotated[str, From(object), _word]
Words: TypeAlias = Annotated[tuple[str, ...], From(object), read_words]
Name: TypeAlias = Annotated[str, name_with("", 64)]
# A file, or where there is none, a name.
FileOrName = NewType("FileOrName", str)


def _make_reader(root: Path) -> Reader:
    """Reads a file of this directory."""

    def path(text: str) -> Path:
        try:
            return root / Path(text).expanduser()
        except RuntimeError:  # there is no such user
            return root / text

    def program(text: str) -> str:
        return str(path(text)) if os.sep in text else text

    def file_or_name(text: str) -> str:
        return str(path(text)) if path(text).exists() else text

    synonyms = {
        Path: Annotated[str, path],
        Program: Annotated[str, program],
        FileOrName: Annotated[str, file_or_name],
    }
    return Reader(_NAMES, {str: _check_text}, synonyms, is_strict=True, refusal=SpecError)


# A table that a program has written: its texts may be empty, and none names a file.
WRITTEN: Final = Reader(_NAMES, is_strict=True, refusal=SpecError)
