"""A defect of ullage's own: what is told of it, and the report that is worth sending.

path = write_crash(error, arguments)
describe_crash(error, path)     # one line
"""

from __future__ import annotations

import getpass
import os
import platform
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ullage.ground.files import write_text
from ullage.ground.printable import hide_secrets, printable, printable_lines
from ullage.ground.version import __version__
from ullage.log.scrubbing.scrub_rules import ScrubRules

_DEPENDENCIES = ("numpy", "click", "rich", "starlette", "uvicorn")
_MAX_CHARS = 60_000
_MAX_MESSAGE = 200
_MIN_NAME = 3


def describe_crash(error: BaseException, path: Path | None) -> str:
    """Describes what happened, in one line."""
    text = printable(str(error))
    message = f": {text[:_MAX_MESSAGE]}" if text else ""
    send = "its report could not be written" if path is None else f"please report it with {path}"
    return f"a defect of ullage itself, {type(error).__name__}{message}; {send}"


def write_crash(error: BaseException, arguments: Sequence[str]) -> Path | None:
    """Writes the report here, or where temporary files go; None: it can be written nowhere."""
    try:
        text = crash_report(error, arguments)
    except Exception:  # a defect while a defect is described
        return None
    name = f"ullage-crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for directory in (Path(), Path(tempfile.gettempdir())):
        with suppress(OSError):
            return write_text(text, directory / name, force=False)
    return None


def crash_report(error: BaseException, arguments: Sequence[str]) -> str:
    """Versions and the traceback, without paths and names of this machine."""
    lines = [
        f"ullage {__version__}, Python {platform.python_version()}, {platform.platform()}",
        ", ".join(f"{name} {installed}" for name in _DEPENDENCIES if (installed := _version(name))),
        f"arguments: {' '.join(hide_secrets(_own_arguments(arguments)))}",
        "",
        *"".join(traceback.format_exception(error)).splitlines(),
    ]
    rules = ScrubRules(os.urandom(16), frozenset(_own_names()))
    text = "\n".join(rules.free_text(printable_lines(line)) for line in lines)
    if len(text) > _MAX_CHARS:
        text = f"{text[: _MAX_CHARS // 2]}\n...\n{text[-_MAX_CHARS // 2 :]}"
    return text + "\n"


def _own_arguments(arguments: Sequence[str]) -> list[str]:
    """Those of ullage: the program's may hold passwords, and had no part in it."""
    if "--" not in arguments:
        return list(arguments)
    end = arguments.index("--")
    return [*arguments[:end], f"-- ({len(arguments) - end - 1} more)"]


def _version(name: str) -> str | None:
    # Where it is loaded: what is not had no part in it.
    try:
        return version(name) if name in sys.modules else None
    except PackageNotFoundError:
        return None


def _own_names() -> list[str]:
    names = [socket.gethostname(), Path.home().name]
    with suppress(KeyError, OSError):
        names.append(getpass.getuser())
    return [name for name in names if len(name) >= _MIN_NAME and name != "root"]
