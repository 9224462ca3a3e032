"""Reads an estimate's options as a table of published figures writes them: each as a flag, those of
ullage.toml alone too.

    read_words(TrainingOptions, "llama-3.2-1b --gpu l4 --length 2048 --attention eager")
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, TypeVar

from ullage.ground.protocol.option import options_of, written
from ullage.verbs.command_line.command import READER

ROOT = Path(__file__).resolve().parent.parent
R = TypeVar("R")


def read_words(record: type[R], text: str) -> R:
    """The record of a text: the model, found in this repository if it is a file here, and flags.

    Raises:
        Misfit: a value is not of its option's type.
    """
    first, *rest = shlex.split(text)
    fields: dict[str, Any] = {"model": str(ROOT / first) if (ROOT / first).exists() else first}
    known, words = options_of(record), iter(rest)
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        kind, default, _ = known[name]
        plain = written(kind)
        value = True if default is False else next(words)
        fields[name] = plain(value) if plain in (int, float) else value
    return READER.read(record, fields)
