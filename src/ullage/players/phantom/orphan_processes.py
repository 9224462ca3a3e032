"""Ends the processes that a program leaves running: servers, workers and daemons.

Each process of a run has the run's directory in its environment, and under `exec --guard` that of
the start. So it is found whatever its parent is by now.

    orphans = end_orphans(run_dir)      # (4711, "process 4711 (python -m http.server)"), ...
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from ullage.ground.protocol.variables import GUARD, RUN_DIR
from ullage.players.inside.process.request_to_end import ask_to_end

# Some end by themselves after the program, such as multiprocessing's resource tracker.
_PATIENCE_S = 0.5
# For a record to be written after SIGTERM; then they are killed.
_GRACE_S = 3.0
_LIMIT_S = 10.0
_POLL_S = 0.02
_COMMAND_CHARS = 60
_HELPERS = ("torch_shm_manag",)
"""Daemons of torch's, as the kernel shortens their names: they use no GPU, and end by themselves,
some seconds after the program, when they have removed its shared memory."""


def end_orphans(run_dir: Path) -> tuple[tuple[int, str], ...]:
    """Ends the remaining processes of a run; returns those that did not end by themselves.

    They get SIGTERM, time to write their records, then SIGKILL. A process that has emptied its
    environment is not found.
    """
    started_s = time.monotonic()
    ended: dict[int, str] = {}
    asked: set[int] = set()
    while pids := set(_find(run_dir)):
        passed_s = time.monotonic() - started_s
        if passed_s > _LIMIT_S:  # a process that the kernel does not let go of
            break
        if passed_s > _PATIENCE_S:
            for pid in pids - ended.keys():
                ended[pid] = _describe(pid)
                _send(pid, signal.SIGTERM)
        if passed_s > _PATIENCE_S + _GRACE_S / 2:
            for pid in pids - asked:  # its main thread may be in C++
                asked.add(pid)
                ask_to_end(run_dir, pid, signal.SIGTERM)
        if passed_s > _PATIENCE_S + _GRACE_S:
            for pid in pids:
                _send(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    return tuple(sorted(ended.items()))


def _find(run_dir: Path) -> Iterator[int]:
    """The processes with this run's directory in the environment that they were started with."""
    tags = {os.fsencode(f"{name}={run_dir}") for name in (RUN_DIR, GUARD)}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes()
            name = Path(entry.path, "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:  # it has ended, or is somebody else's
            continue
        # The environment is empty for one that has ended.
        if not tags.isdisjoint(environment.split(b"\0")) and name not in _HELPERS:
            yield int(entry.name)


def _describe(pid: int) -> str:
    """The number and the shortened command line of a process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    parts = [word.decode(errors="replace") for word in words]
    # The path of the interpreter is long and says little.
    command = " ".join([Path(parts[0]).name, *parts[1:]]).strip() if parts else ""
    if len(command) > _COMMAND_CHARS:
        command = command[: _COMMAND_CHARS - 1] + "…"
    return f"process {pid} ({command})" if command else f"process {pid}"


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
