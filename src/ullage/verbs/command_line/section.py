"""The section of a verb in ullage.toml: what holds where the command line does not say.

[run]
gpu = "l4"
python = "thin/bin/python"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ullage.ground.config.project_file import find_configuration, read_configuration
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import options_of
from ullage.ground.protocol.plain import Misfit
from ullage.verbs.command_line.streams import say


def read_section(verb: str, records: Sequence[type[Any]], names: Sequence[str]) -> dict[str, Any]:
    """The values in the section of a verb, by the names of options; paths begin at the file.

    Args:
        verb: the name of the section.
        records: the verb's, of which the first with an option says how that is read.
        names: the options that the command has.

    Raises:
        SpecError: a key is not an option, or its value has another type; with file and line.
    """
    try:
        file = find_configuration(Path.cwd())
    except SpecError as error:
        # Nobody has named the file: what it says is not needed.
        say(f"ullage: [{verb}] is not read: {error}", is_aside=True)
        return {}
    if file is None:
        return {}
    source, document = read_configuration(file)
    table = document.get(verb, {})
    if verb == "watch" and isinstance(
        table, dict
    ):  # operate/watch/alerts/rules_file.py reads its tables
        table = {key: value for key, value in table.items() if key not in ("alert", "notify")}
    values: dict[str, Any] = {}
    with source.at(verb):
        if not isinstance(table, dict):
            raise Misfit("is not a table; expected options by their names")
        for key in table:
            if key not in names:
                close = get_close_matches(key, names, n=1)
                meant = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(names)}"
                raise Misfit(f"has no option {key!r}; {meant}", inner=key)
    for record in records:
        options = options_of(record)
        part = {key: value for key, value in table.items() if key in options and key not in values}
        if part:
            absent = {name: None for name, (_, default, _) in options.items() if default is MISSING}
            read = source.read(record, (verb,), part, **absent)
            values |= {key: getattr(read, key) for key in part}
    return values
