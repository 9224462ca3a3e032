"""Where the user's own measurements of a GPU are kept, beside the catalogue."""

from __future__ import annotations

import os
from pathlib import Path


def measurement_path(kind: str, slug: str) -> Path:
    """The file of one kind of measurement ("rates", "memory") of a GPU in the catalogue."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration, "ullage", kind, f"{slug}.json")
