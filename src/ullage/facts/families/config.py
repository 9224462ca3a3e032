"""A model's published configuration: a Hugging Face config.json, or one that is built in.

    config = read_config("path/to/model")
    config.number("hidden_size", "n_embd")      # 4096; an error names the field that is not there
    config.number("head_dim", default=None)

A missing value is never invented: the error asks for the field by name. A default may be given
where the library's own configuration class has it, because config.json leaves such values out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Final

from ullage.ground.errors import SpecError
from ullage.ground.parsing import read_bounded

FILE_NAME: Final = "config.json"
COUNTED: Final = "counted"  # model_type of a mere number of parameters


class _Ask:
    """Stands for: there is no default."""


ASK: Final = _Ask()


@dataclass(frozen=True, slots=True)
class Config:
    """The fields of a configuration, with names for the errors.

    Attributes:
        name: the user's name for it: a path, or the name of a built-in model.
        fields: as in the file.
        inside: the field that holds a part, such as "text_config"; "" for the whole.
        names: the file's name of a field that is read by another (see defaults.py).
    """

    name: str
    fields: Mapping[str, Any]
    inside: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """The architecture: as transformers calls it, or diffusers its class, or timm its model."""
        return str(self.text("model_type", "_class_name", "architecture"))

    def has(self, *names: str) -> bool:
        """One of the fields is there and is not null."""
        return any(self.fields.get(name) is not None for name in names)

    def part(self, name: str) -> Config:
        """A configuration within this one, such as text_config."""
        part = self.fields.get(name)
        if not isinstance(part, Mapping):
            raise SpecError(f"{self._where(name)}: found {part!r}, expected an object")
        return Config(self.name, part, f"{self.inside}{name}.")

    def number(self, *names: str, default: Any = ASK, least: int = 0) -> Any:  # noqa: ANN401
        """A whole number, by its name or another name for the same."""
        value = self._find(names, default)
        if value is default:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SpecError(
                f"{self._where(names[0])}: found {value!r}, expected a whole number from {least} on"
            )
        return value

    def real(self, *names: str, default: Any = ASK) -> Any:  # noqa: ANN401
        """A number that need not be whole."""
        return self._find_as(int | float, "a number", names, default)

    def flag(self, *names: str, default: Any = ASK) -> Any:  # noqa: ANN401
        """true or false."""
        return self._find_as(bool, "true or false", names, default)

    def text(self, *names: str, default: Any = ASK) -> Any:  # noqa: ANN401
        """A string."""
        return self._find_as(str, "a string", names, default)

    def row(self, *names: str, default: Any = ASK) -> Any:  # noqa: ANN401
        """A list, as a tuple."""
        value = self._find_as(list | tuple, "a list", names, default)
        return value if value is default else tuple(value)

    def wrong(self, name: str, why: str) -> SpecError:
        """The error for a field whose value does not fit another field's."""
        return SpecError(f"{self._where(name)}: {why}")

    def _find_as(
        self, kinds: type | UnionType, what: str, names: tuple[str, ...], default: object
    ) -> Any:  # noqa: ANN401
        value = self._find(names, default)
        # True is an int, but no number.
        is_fit = isinstance(value, kinds) and isinstance(value, bool) is (kinds is bool)
        if value is not default and not is_fit:
            raise self.wrong(names[0], f"found {value!r}, expected {what}")
        return value

    def _find(self, names: tuple[str, ...], default: Any) -> Any:  # noqa: ANN401
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        if default is ASK:
            others = "".join(f", also called {name!r}" for name in names[1:])
            raise SpecError(
                f"{self._where(names[0])}: it is missing{others}; add it: no other field gives "
                f"its value"
            )
        return default

    def _where(self, name: str) -> str:
        return f"{self.name}: field {self.inside + self.names.get(name, name)!r}"


def read_config(path: str | Path) -> Config:
    """Reads a config.json, or the one in a folder.

    Raises:
        SpecError: the file is missing, not JSON, or not an object.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    try:
        fields = json.loads(read_bounded(file))
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(fields, Mapping):
        raise SpecError(f"{file}: found {type(fields).__name__}, expected an object")
    return Config(str(path), fields)
