"""A table of a configuration that is read key by key, and whose errors name the file, the line and
the remedy.

    section = Section(source, ("scenario", "train"), table)
    section.text("gpu")                     # None where it is not there
    section.refuse_rest()                   # what nobody asked for is a mistake
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from ullage.configuration.toml_lines import find_line
from ullage.errors import SpecError
from ullage.parsing import show_value
from ullage.printable import printable

Kind = TypeVar("Kind")
_KINDS = {str: "a text", int: "a whole number", bool: "true or false", list: "a list",
          dict: "a table", (str, list): "a text or a list",
          (str, int): "a text or a number", (str, int, float): "a text or a number"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration file: what it is called, its text, and the tables around what is ullage's."""

    path: Path
    text: str
    around: tuple[str, ...] = ()

    def error(self, keys: tuple[str, ...], message: str) -> SpecError:
        """An error at a key."""
        line = find_line(self.text, (*self.around, *keys))
        return SpecError(f"{printable(self.path.name)}:{line}: {message}")


class Section:
    """A table: each key is taken once."""

    def __init__(self, source: Source, keys: tuple[str, ...], table: Mapping[str, Any]) -> None:
        self._source = source
        self.keys = keys
        self._rest = dict(table)
        self._known: list[str] = []

    @property
    def line(self) -> int:
        """Where it begins."""
        return find_line(self._source.text, (*self._source.around, *self.keys))

    def error(self, key: str, message: str) -> SpecError:
        """An error at one of its keys."""
        space = "" if message.startswith(":") else " "
        return self._source.error((*self.keys, key), f"{self._name(key)}{space}{message}")

    def text(self, key: str, example: str = "") -> str | None:
        """A text that is not empty."""
        value: str | None = self._take(key, str)
        if value is not None and not value.strip():
            raise self.error(key, f'is empty; give a value, for example: {key} = "{example}"')
        return value

    def number(self, key: str, least: int) -> int | None:
        """A whole number."""
        value: int | None = self._take(key, int)
        if value is not None and value < least:
            raise self.error(key, f"is {value}; expected {least} or more")
        return value

    def switch(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value: bool | None = self._take(key, bool)
        return default if value is None else value

    def size(self, key: str) -> str | int | None:
        """A size as it is written."""
        value: str | int | None = self._take(key, (str, int))
        return value

    def amount(self, key: str) -> str | int | float | None:
        """A number, or a number with its unit as a text."""
        value: str | int | float | None = self._take(key, (str, int, float))
        return value

    def words(self, key: str) -> str | list[str] | None:
        """A text, or a list of texts and numbers as texts."""
        value: str | list[Any] | None = self._take(key, (str, list))
        return [self._word(key, word) for word in value] if isinstance(value, list) else value

    def list(self, key: str) -> list[Any] | None:
        """A list."""
        value: list[Any] | None = self._take(key, list)
        return value

    def mapping(self, key: str) -> Mapping[str, str]:
        """A table of texts, or numbers as texts."""
        table: dict[str, Any] = self._take(key, dict) or {}
        return {name: self._word(key, word) for name, word in table.items()}

    def inner(self, key: str) -> Section:
        """A table in this one; an empty one where there is none."""
        return Section(self._source, (*self.keys, key), self._take(key, dict) or {})

    @property
    def names(self) -> tuple[str, ...]:
        """The remaining keys."""
        return tuple(self._rest)

    def items(self) -> dict[str, Any]:
        """Takes all remaining keys."""
        rest, self._rest = self._rest, {}
        return rest

    def refuse_rest(self) -> None:
        """Raises SpecError where an unknown key is left."""
        for key in self._rest:
            close = get_close_matches(key, self._known, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(self._known)}"
            name = ".".join(self.keys) or "the configuration"
            raise self._source.error((*self.keys, key), f"{name} has no key {key!r}; {meant}")

    def _take(self, key: str, kind: type | tuple[type, ...]) -> Any:  # noqa: ANN401 - parsed TOML
        self._known.append(key)
        value = self._rest.pop(key, None)
        is_bool = isinstance(value, bool)
        if value is not None and (not isinstance(value, kind) or is_bool is not (kind is bool)):
            raise self.error(key, f"is {_show(value)}; expected {_KINDS[kind]}")
        return self._without_nul(key, value)

    def _without_nul(self, key: str, value: Any) -> Any:  # noqa: ANN401 - parsed TOML
        """The value itself: a NUL, at which the operating system would end a text, is refused."""
        texts = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            texts = [*value.values()]
        if any(isinstance(text, str) and "\0" in text for text in texts):
            raise self.error(key, "holds the character NUL, at which a text would end; remove it")
        return value

    def _word(self, key: str, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.error(key, f"holds {_show(value)}; expected texts and numbers")
        return str(value)

    def _name(self, key: str) -> str:
        return ".".join((*self.keys, key))


def _show(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else show_value(value)
