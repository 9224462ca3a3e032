"""The JSON schema of the verbs' sections of ullage.toml, with which an editor completes them.

python -m ullage.verbs.command_line.schema > ullage.schema.json
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import click

from ullage.ground.protocol.option import table_schema
from ullage.verbs import SECTIONS
from ullage.verbs.command_line.command import Verb


def file_schema() -> dict[str, Any]:
    """The JSON schema of the sections of options; other tables of the file are not looked at."""
    properties: dict[str, Any] = {}
    for name in SECTIONS:
        stem = name.replace("-", "_")
        verb = getattr(import_module(f"ullage.verbs.{stem}.command"), f"{stem}_command")
        if isinstance(verb, Verb):
            options = {*(each.name for each in verb.params), *verb.settings}
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
