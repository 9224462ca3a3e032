"""What is imported before the commands of the tests are forked."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = (
    "ullage.answers.text",
    "ullage.api.fit", "ullage.api.run", "ullage.cli.main", "ullage.cli.run", "ullage.explain.run",
    "ullage.phantom.artifacts", "ullage.plan.fit", "ullage.report.text.run",
)  # fmt: skip


def prepare(settings: dict[str, Any]) -> None:
    """Imports what every verb needs; the programs that they start are forked, too."""
    for name in _MODULES:
        importlib.import_module(name)
    importlib.import_module("client").install(settings["servers"])
