"""Scripts that ullage starts inside the user's torch; they import nothing of ullage."""

from __future__ import annotations

from pathlib import Path


def program_path(name: str) -> Path:
    """The path of the script of this name, such as "launcher_query"."""
    return Path(__file__).with_name(f"{name}.py")
