"""Ends what a program leaves running: servers, workers and daemons that it started and forgot.

Each process of a run has the run's own directory in its environment, which tells it apart from all
others on the machine whoever its parent is by now.

    strays = end_strays(run_dir)        # (4711, "process 4711 (python -m http.server)"), ...
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from ullage.protocol.variables import RUN_DIR

# What ends by itself when the program does, such as multiprocessing's resource tracker, may.
_PATIENCE_S = 0.5
# For a record to be written after SIGTERM; then they are killed.
_GRACE_S = 3.0
_LIMIT_S = 10.0
_POLL_S = 0.02
_COMMAND_CHARS = 60


def end_strays(run_dir: Path) -> tuple[tuple[int, str], ...]:
    """Ends the processes of a run that are left, and says which had to be.

    They get SIGTERM, and time to write their records, then SIGKILL. One that has emptied its
    environment is not found.
    """
    started_s = time.monotonic()
    ended: dict[int, str] = {}
    while found := set(_find(run_dir)):
        passed_s = time.monotonic() - started_s
        if passed_s > _LIMIT_S:  # a process that the kernel does not let go of
            break
        if passed_s > _PATIENCE_S:
            for pid in found - ended.keys():
                ended[pid] = _describe(pid)
                _send(pid, signal.SIGTERM)
        if passed_s > _PATIENCE_S + _GRACE_S:
            for pid in found:
                _send(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    return tuple(sorted(ended.items()))


def _find(run_dir: Path) -> Iterator[int]:
    """The processes with this run's directory in the environment that they were started with."""
    tag = os.fsencode(f"{RUN_DIR}={run_dir}")
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
        if tag in environment.split(b"\0"):  # empty for one that has ended
            yield int(entry.name)


def _describe(pid: int) -> str:
    """Its number, and its command line as far as it is worth showing."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    shown = [word.decode(errors="replace") for word in words]
    # Where an interpreter lies is the longest and least telling part.
    command = " ".join([Path(shown[0]).name, *shown[1:]]).strip() if shown else ""
    if len(command) > _COMMAND_CHARS:
        command = command[: _COMMAND_CHARS - 1] + "…"
    return f"process {pid} ({command})" if command else f"process {pid}"


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
