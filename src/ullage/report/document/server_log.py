"""The documents of a server's log: "ullage.server/1", and of two compared "ullage.server-diff/1".

Sizes are bytes; null: the log does not say.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from ullage.explain.servers.differences import StartChange
from ullage.explain.servers.levers import Lever
from ullage.explain.servers.start import ServerStart

SERVER_SCHEMA: Final = "ullage.server/1"
SERVER_DIFF_SCHEMA: Final = "ullage.server-diff/1"


def server_document(path: str, start: ServerStart, levers: tuple[Lever, ...]) -> dict[str, Any]:
    """The document of one start."""
    return {
        "schema": SERVER_SCHEMA,
        "file": path,
        **_start(start),
        "levers": [lever._asdict() for lever in levers],
    }


def server_diff_document(paths: tuple[str, str], change: StartChange) -> dict[str, Any]:
    """The document of two starts."""
    return {
        "schema": SERVER_DIFF_SCHEMA,
        "files": list(paths),
        "before": _start(change.before),
        "after": _start(change.after),
        "tokens": change.tokens,
        "named_frac": change.named_frac,
        "causes": [cause._asdict() for cause in change.causes],
        "options": [
            {"name": name, "before": before, "after": after}
            for name, before, after in change.options
        ],
    }


def _start(start: ServerStart) -> dict[str, Any]:
    plain = {field.name: getattr(start, field.name) for field in fields(start)}
    plain["options"] = dict(start.options)
    for name in ("failure", "failure_before"):
        plain[name] = None if plain[name] is None else plain[name]._asdict()
    plain["load"] = None if start.load is None else start.load._asdict()
    return {
        **plain,
        "token_bytes": start.token_bytes,
        "parts": [part._asdict() for part in start.parts],
    }
