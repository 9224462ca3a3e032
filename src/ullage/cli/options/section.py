"""The section of a verb in ullage.toml: what holds where the command line does not say.

[run]
gpu = "l4"
python = "thin/bin/python"

`python -m ullage.cli.options.section > ullage.schema.json` writes the schema for an editor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from ullage.cli.main import cli, say
from ullage.cli.options.command import Verb
from ullage.configuration.project_file import find_configuration, read_configuration
from ullage.errors import SpecError
from ullage.protocol.options import SECTIONS
from ullage.protocol.options.option import options_of, table_schema
from ullage.protocol.plain import Misfit


def read_section(verb: str, records: Sequence[type[Any]], names: Sequence[str]) -> dict[str, Any]:
    """What the section of a verb sets, by the names of options; paths begin at the file.

    Args:
        verb: the name of the section.
        records: the verb's, of which each option is read as the first that has it says.
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


def file_schema() -> dict[str, Any]:
    """The JSON schema of the sections of options; other tables of the file are not looked at."""
    properties: dict[str, Any] = {}
    for name in SECTIONS:
        verb = cli.get_command(click.Context(cli), name)
        if isinstance(verb, Verb):
            options = {each.name for each in verb.params}
            known: dict[str, Any] = {}
            for record in verb.records:
                known |= table_schema(record)
            known = {key: value for key, value in known.items() if key in options}
            properties[name] = {
                "type": "object", "additionalProperties": False, "properties": known
            }  # fmt: skip
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "type": "object", "properties": properties}


if __name__ == "__main__":
    click.echo(json.dumps(file_schema(), indent=2))
