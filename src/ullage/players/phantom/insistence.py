"""Ends a program that was sent a signal and goes on.

Its main thread may be in C++, where no handler of Python's runs. Then another thread of it is asked
to write the record. A program with a handler of its own gets the time that schedulers give it. What
still goes on is killed; its peaks are known from its levels.

    insist(process, run_dir, signal.SIGTERM, process.kill)
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from ullage.players.inside.process.levels import WRITING, find_marks, read_levels
from ullage.players.inside.process.request_to_end import ask_to_end, reply_path

# For the main thread to come back to Python; then for another one to get Python's lock.
_PATIENCE_S = 3.0
# As Kubernetes and Slurm have it, from the signal on.
_GRACE_S = 30.0


def insist(
    process: subprocess.Popen[bytes], run_dir: Path, number: int, kill: Callable[[], object]
) -> None:
    """Waits for the end of a process after a signal, and brings it about."""
    if _ends_within(process, _PATIENCE_S):
        return
    asked = ask_to_end(run_dir, process.pid, number)
    if _ends_within(process, _PATIENCE_S, run_dir):
        return
    if not asked or reply_path(run_dir, process.pid).exists():
        if _ends_within(process, _GRACE_S - 2 * _PATIENCE_S):
            return
        ask_to_end(run_dir, process.pid, number)
        if _ends_within(process, _PATIENCE_S, run_dir):
            return
    kill()


def _ends_within(
    process: subprocess.Popen[bytes], patience_s: float, run_dir: Path | None = None
) -> bool:
    """True if it ends in that time, or as long as a process of the run writes its record."""
    while True:
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            if run_dir is None or not is_writing(run_dir):
                return False
        else:
            return True


def is_writing(run_dir: Path) -> bool:
    """True if a process of the run writes its record, which a loaded machine takes its time for."""
    return any(read_levels(mark).excuse == WRITING for mark in find_marks(run_dir).values())
