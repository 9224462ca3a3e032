"""What is imported before the commands of the tests are forked."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = (
    "ullage.answers.text", "ullage.verbs.fit.function", "ullage.verbs.run.function", "ullage.cli",
    "ullage.verbs.run.command", "ullage.explain.run", "ullage.players.phantom.artifacts",
    "ullage.search.fit", "ullage.verbs.run.text",
)  # fmt: skip


def prepare(settings: dict[str, Any]) -> None:
    """Imports what every verb needs; the programs that they start are forked, too."""
    for name in _MODULES:
        importlib.import_module(name)
    importlib.import_module("client").install(settings["servers"])
