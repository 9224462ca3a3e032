"""Where and how long a scenario runs, and which files it depends on: what a configuration says to
the operating system, checked before anything starts.

    read_directory(section, root), read_environment(section), read_inputs(section)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ullage.configuration.sections import Section
from ullage.files import is_directory

# A scenario is a few steps of a program; the phantom takes seconds for them.
DEFAULT_TIMEOUT_S = 30 * 60
_MAX_TIMEOUT_S = 7 * 24 * 3600
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}
_TIME = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>s|m|min|h)", re.ASCII)
_NOWHERE = "/dev/null"  # a pattern is tried where nothing can match


def read_directory(section: Section, root: Path) -> Path:
    """Where a scenario runs: at the configuration, or in a directory below it."""
    text = section.text("directory", "training")
    path = root if text is None else root / _expanded(text)
    if not is_directory(path):
        raise section.error("directory", f"is {text!r}, and there is no such directory in {root}")
    return path


def read_python(section: Section, root: Path) -> str | None:
    """The interpreter; None is that of ullage."""
    text = section.text("python", ".venv/bin/python")
    # A name alone is looked for on PATH; a path begins at the configuration.
    return text if text is None or os.sep not in text else str(root / _expanded(text))


def _expanded(text: str) -> Path:
    """A path with the user's home for ~; as it is written where there is no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def read_environment(section: Section) -> Mapping[str, str]:
    """Variables, as an operating system takes them."""
    variables = section.mapping("env")
    for name in variables:
        if not name or "=" in name or "\0" in name:
            raise section.error(
                "env", f"has a variable {name!r}; expected a name without = and NUL, such as SEED"
            )
    return variables


def read_inputs(section: Section) -> tuple[str, ...]:
    """Patterns of files below the scenario's directory."""
    value = section.words("inputs") or []
    patterns = (value,) if isinstance(value, str) else tuple(value)
    for pattern in patterns:
        try:
            is_below = not Path(pattern).is_absolute()
            list(Path(_NOWHERE).glob(pattern))
        except (ValueError, NotImplementedError, IndexError):
            is_below = False
        if not is_below:
            raise section.error(
                "inputs",
                f"has {pattern!r}, which is no pattern of files below the scenario's directory; "
                'write, for example: inputs = ["data/*.bin"]',
            )
    return patterns


def read_timeout(section: Section) -> float:
    """How long a case may run, in seconds: "10m", "90s", "1h", or a number of seconds."""
    value = section.size("timeout")
    if value is None:
        return DEFAULT_TIMEOUT_S
    match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = float(match["number"]) * _SECONDS[match["unit"]] if match else value
    if isinstance(seconds, str) or not 0 < seconds <= _MAX_TIMEOUT_S:
        raise section.error(
            "timeout", f'is {value!r}; expected a time of up to 7 days, such as "10m" or "90s"'
        )
    return float(seconds)
