"""Published models that ullage knows by name, so that no file is needed.

find_model("llama-3.1-8b").config.number("hidden_size")     # 4096
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Final

from ullage.facts.families.config import Config
from ullage.ground.errors import SpecError

_FILES: Final = ("builtin.toml", "images.toml")
_NAME: Final = re.compile(r"^\[\"?([^\"\]]+)\"?\]$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A published model.

    Attributes:
        name: the model's name here, such as "llama-3.1-8b".
        source: the repository of the Hugging Face hub, or the page, that has the configuration.
        parameters: how many its publisher states, to the unit; None where it states none.
        config: its configuration.
        note: what is left out.
    """

    name: str
    source: str
    parameters: int | None
    config: Config
    note: str = ""


def load_models() -> dict[str, BuiltIn]:
    """All of them, by name."""
    return {name: _read_model(name) for name in _table_texts()}


@cache
def _table_texts() -> dict[str, str]:
    """The text of each model's table, by name: only the one that is asked for is parsed."""
    folder = Path(__file__).parent
    texts: dict[str, str] = {}
    for file in _FILES:
        _, *parts = _NAME.split((folder / file).read_text("utf-8"))
        texts |= dict(zip(parts[::2], parts[1::2], strict=True))
    return texts


@cache
def _read_model(name: str) -> BuiltIn:
    row = tomllib.loads(_table_texts()[name])
    config = Config(name, row["config"])
    return BuiltIn(name, row["source"], row.get("parameters"), config, row.get("note", ""))


def find_model(name: str) -> BuiltIn:
    """The model of a name, or of the repository that it is published in; case does not count.

    Raises:
        SpecError: there is none; the error names what is close.
    """
    key = name.lower()
    if key in _table_texts():
        return _read_model(key)
    models = load_models()
    for model in models.values():
        if key in (model.source.lower(), model.source.lower().partition("/")[2]):
            return model
    close = get_close_matches(key, models, n=3, cutoff=0.4)
    all_of_them = "`ullage estimate` lists them"
    meant = f"did you mean {' or '.join(close)}?" if close else all_of_them
    raise SpecError(f"model: found {name!r}, which is neither a file nor a built-in model; {meant}")
