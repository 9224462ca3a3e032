"""Scripts that ullage starts inside the user's torch; they import nothing of ullage."""

from __future__ import annotations

from pathlib import Path


def program_path(name: str) -> Path:
    """The file of one of these scripts, such as "measure_rates"."""
    return Path(__file__).with_name(f"{name}.py")
