"""Runs inside the user's process: notes which files the program reads, imports or looks for, so
that a result can be kept until one of them changes.

Python tells of every file that it is about to open and of every directory that it lists (audit
events). Each is noted once, at once, as a line of JSON in a file of the process in the directory
that the variable INPUTS names, so that a process that is killed has listed what it had read:

    ["read", "/path/model.py"]      opened to be read; it may not be there
    ["write", "/path/log.txt"]      opened to be written, before anything was read of it
    ["list", "/path/data"]          listed by the program
    ["import", "/path"]             listed by an import, which looks for names of modules

What a library opens by itself, without Python, is not listed, nor whether a file merely exists.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

from ullage.ground.protocol.variables import INPUTS, RUN_DIR

READ, WRITE, LIST, IMPORT = "read", "write", "list", "import"

# What looks for modules and distributions: on the whole module path, the project's own too.
_IMPORTING = re.compile(r"^<frozen (importlib|zipimport)|/importlib/metadata/|/pkgutil\.py$")
_SYSTEM = ("/proc/", "/sys/", "/dev/")
# Beside RUN_DIR: what a compiler made of the program's own sources.
_CACHES = (RUN_DIR, INPUTS, "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_WRITING = os.O_WRONLY | os.O_TRUNC | os.O_CREAT | os.O_APPEND


def note_inputs(environment: Mapping[str, str] = os.environ) -> None:
    """Begins to note what this process and its forks read, if INPUTS says where."""
    directory = environment.get(INPUTS)
    if not directory:
        return
    caches = (f"{environment[name]}/" for name in _CACHES if environment.get(name))
    notes = _Notes(directory, (*_SYSTEM, *_installed(), *caches))

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            notes.note(WRITE if _is_written(arguments[1], arguments[2]) else READ, arguments[0])
        elif event in {"os.listdir", "os.scandir"}:
            caller = sys._getframe(1).f_code.co_filename
            notes.note(IMPORT if _IMPORTING.search(caller) else LIST, arguments[0])
        elif event == "import" and arguments[1]:  # a library, which is not opened as a file
            notes.note(READ, arguments[1])

    sys.addaudithook(hear)


class _Notes:
    """The files that have been noted, and are not to be noted again."""

    def __init__(self, directory: str, left_out: tuple[str, ...]) -> None:
        self._directory = directory
        self._left_out = left_out
        self._known: set[str] = set()
        self._is_writing = False

    def note(self, kind: str, path: Any) -> None:
        """Notes a path, unless it was, or is none of the program's."""
        if self._is_writing or isinstance(path, int):
            return
        try:
            full = os.path.abspath(os.fsdecode("." if path is None else path) or ".")  # noqa: PTH100
        except (TypeError, ValueError, OSError):  # nothing that can be opened
            return
        # A file that was written first is the program's own; one that was read first stays noted.
        key = full if kind in {READ, WRITE} else f"{kind} {full}"
        if key in self._known or f"{full}/".startswith(self._left_out):
            return
        self._known.add(key)
        self._is_writing = True
        try:
            self._append(json.dumps([kind, full]))
        finally:
            self._is_writing = False

    def _append(self, line: str) -> None:
        """Opened for each line: the program may close what it finds open."""
        name = os.path.join(self._directory, str(os.getpid()))  # noqa: PTH118
        try:
            number = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:  # the parent finds nothing noted, and keeps nothing
            return
        try:
            os.write(number, line.encode("utf-8", "surrogateescape") + b"\n")
        finally:
            os.close(number)


def _is_written(mode: object, flags: int) -> bool:
    """True if a file is opened to be created again or appended to."""
    if isinstance(mode, str) and any(letter in mode for letter in "wxa"):
        return True
    return bool(flags & _WRITING) and not flags & os.O_RDWR


def _installed() -> tuple[str, ...]:
    """The directories of Python itself and of what was installed, which the parent knows."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    prefixes = {f"{path}/" for path in map(sysconfig.get_paths().get, names) if path}
    # The library as an archive, which is looked for and seldom there.
    prefixes |= {f"{path}/" for path in sys.path if path.endswith(".zip")}
    ours = os.path.abspath(__file__).partition("/players/inside/")[0]  # noqa: PTH100
    return (*sorted(prefixes), f"{ours}/")
