"""The options of `ullage front`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ullage.ground.protocol.option import OPTIONS


@dataclass(frozen=True, slots=True)
class FrontOptions:
    """Whose configuration is in force; the table [front] has all else."""

    config: Path | None = OPTIONS("Configuration; default: the nearest ullage.toml.", "FILE")
    check: bool = OPTIONS.switch("Check the configuration, show it, and end.")
