"""Who a process is: its program, its user and where in a cluster it runs, as far as /proc tells.

    Identities().find(4242)      # ProcessSample(4242, ..., name="train.py", user="ada")

In a container the driver may give numbers of the host, and another process may have that number
here. There a process counts as this one only if it has a device of NVIDIA's open, or publishes
itself as a job.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from ullage.operate.watch.nvml.cluster import read_cluster, read_file
from ullage.operate.watch.sample import ProcessKind, ProcessSample

# The number of the first PID namespace, in every Linux kernel (PROC_PID_INIT_INO).
_FIRST_NAMESPACE: Final = "pid:[4026531836]"
_KEPT_S: Final = 60.0
_MAX_READ: Final = 4096
_MAX_NAME: Final = 80
_PYTHON: Final = re.compile(r"python[0-9.]*$")


class Identities:
    """Finds who processes are, and remembers each for a minute."""

    def __init__(
        self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._proc, self._clock = proc, clock
        self._is_first = _read_link(proc / "self/ns/pid") == _FIRST_NAMESPACE
        self._known: dict[int, tuple[float, ProcessSample]] = {}
        self._users: dict[int, str] = {}
        self._jobs: frozenset[int] = frozenset()
        self._next_sweep_s = 0.0

    def trust(self, pids: frozenset[int]) -> None:
        """Tells which processes have published themselves as jobs."""
        if pids != self._jobs:
            for pid in pids ^ self._jobs:
                self._known.pop(pid, None)
            self._jobs = pids

    def find(self, pid: int) -> ProcessSample:
        """Finds a process in /proc; the driver says how it uses the GPU."""
        now_s = self._clock()
        if now_s >= self._next_sweep_s:  # forgets processes that nobody has asked for
            self._known = {key: entry for key, entry in self._known.items() if entry[0] > now_s}
            self._next_sweep_s = now_s + _KEPT_S
        known = self._known.get(pid)
        if known is not None and known[0] > now_s:
            return known[1]
        identity = self._read(pid)
        # Of a process that starts now not all is known yet.
        self._known[pid] = (now_s + (_KEPT_S if identity.name else 1.0), identity)
        return identity

    def _read(self, pid: int) -> ProcessSample:
        directory = self._proc / str(pid)
        unknown = ProcessSample(pid, ProcessKind.COMPUTE, None, is_own=False)
        try:
            uid = directory.stat().st_uid
        except OSError:
            return unknown
        if not self._is_first and not self._is_here(pid, directory):
            return unknown
        where = asdict(read_cluster(directory))
        if uid not in self._users:
            self._users[uid] = _user_name(uid)
        user = self._users[uid]
        return replace(unknown, name=_name(directory), user=user, is_own=True, **where)

    def _is_here(self, pid: int, directory: Path) -> bool:
        """True if the number is this namespace's, where it might be the host's."""
        if pid == os.getpid() or pid in self._jobs:
            return True
        try:
            files = [entry.name for entry in os.scandir(directory / "fd")]
        except OSError:
            return False
        return any(_read_link(directory / "fd" / name).startswith("/dev/nvidia") for name in files)


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _name(directory: Path) -> str | None:
    """The base name of the program; of Python the script's or the module's."""
    words = read_file(directory / "cmdline", _MAX_READ).split(b"\0")
    texts = [word.decode(errors="replace") for word in words]
    program = Path(texts[0]).name
    if _PYTHON.match(program):
        program = _script(texts[1:]) or program
    if not program:
        program = read_file(directory / "comm", _MAX_READ).decode(errors="replace").strip()
    return program[:_MAX_NAME] or None


def _script(words: list[str]) -> str | None:
    """The script that Python was told to run: `-m MODULE`, or the first word but options."""
    rest = iter(words)
    for word in rest:
        if word == "-m":
            return next(rest, None)
        if word == "-c":
            return None
        if word in ("-X", "-W"):
            next(rest, None)
        elif word and not word.startswith("-"):
            return Path(word).name
    return None


def _read_link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - a Path would lose what "pid:[1]" looks like
    except OSError:
        return ""
