"""Settings as a user writes them: "KIND:name=value,name=value", or without a kind.

settings = Settings.parse("index", "hnsw:vectors=10M,width=768")
settings.kind, settings.count("vectors"), settings.check()
"""

from __future__ import annotations

import re
from typing import Final, NoReturn, Self

from ullage.ground.errors import SpecError
from ullage.ground.units import parse_bytes

_COUNT: Final = re.compile(r"(\d+(?:\.\d+)?)([KMB]?)")
_POWERS: Final = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


class Settings:
    """Names and their values; each that is read is known, and check() refuses the rest.

    Attributes:
        option: the option that they were given to, for messages.
        kind: the word before the colon; "": there is none.
    """

    def __init__(self, option: str, kind: str, values: dict[str, str]) -> None:
        self.option, self.kind = option, kind
        self._values, self._known = values, dict.fromkeys(values, False)
        self._names: list[str] = []

    @classmethod
    def parse(cls, option: str, text: str) -> Self:
        """Reads a text.

        Raises:
            SpecError: a part is not name=value, or a name comes twice.
        """
        kind, colon, rest = text.partition(":")
        if not colon or "=" in kind:
            kind, rest = ("", text) if "=" in text else (text, "")
        values: dict[str, str] = {}
        for part in filter(None, rest.split(",")):
            name, equals, value = (word.strip() for word in part.partition("="))
            if not (name and equals and value):
                raise SpecError(f"{option}: found {part!r}, expected name=value")
            if name in values:
                raise SpecError(f"{option}: {name} is given twice; leave one out")
            values[name] = value
        return cls(option, kind.strip(), values)

    def text(self, name: str, default: str) -> str:
        """A word."""
        self._names.append(name)
        self._known[name] = True
        return self._values.get(name, default)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number from 1 on; K, M and B stand for thousands, millions and billions.

        Raises:
            SpecError: it is none, or is missing and has no default.
        """
        text = self.text(name, "")
        if not text:
            if default is None:
                self.refuse_missing(name)
            return default
        return parse_count(f"{self.option}: {name}", text)

    def switch(self, name: str, default: str) -> bool:
        """True if something is on.

        Raises:
            SpecError: the word is neither on nor off.
        """
        word = self.text(name, default)
        if word not in ("on", "off"):
            raise SpecError(f"{self.option}: {name}: found {word!r}, expected on or off")
        return word == "on"

    def refuse_missing(self, name: str) -> NoReturn:
        """Says that a setting is missing.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"{self.option}: {name} is missing; add {name}=VALUE")

    def size(self, name: str) -> int | None:
        """A number of bytes, such as 64GiB; None: it is not given."""
        text = self.text(name, "")
        return None if not text else parse_bytes(text)

    def check(self) -> None:
        """Refuses names that nothing has read.

        Raises:
            SpecError: there is one.
        """
        unknown = [name for name, is_known in self._known.items() if not is_known]
        if unknown:
            raise SpecError(
                f"{self.option}: found {unknown[0]!r}, expected one of {', '.join(self._names)}"
            )


def parse_count(label: str, text: str) -> int:
    """A whole number from 1 on, such as "10M".

    Raises:
        SpecError: the text is none.
    """
    match = _COUNT.fullmatch(text)
    number = 0.0 if match is None else float(match[1]) * _POWERS[match[2]]
    if number < 1 or number != int(number):
        raise SpecError(f"{label}: found {text!r}, expected a number from 1 on, such as 500 or 10M")
    return int(number)


def split_count(option: str, text: str) -> tuple[str, int | None]:
    """The two halves of "WORD:NUMBER"; None where there is no number.

    Raises:
        SpecError: what is behind the colon is not a number from 1 on.
    """
    word, colon, number = text.rpartition(":")
    if not colon:
        return text, None
    return word, parse_count(option, number)
