"""The processor time of each case: of the process that runs it, and of all that it started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat behind the name: utime, stime, and both of the children that have ended.
_TIMES = slice(11, 15)


def processor_s() -> float:
    """Seconds of processor time so far of this process and its descendants, ended ones too.

    What outlives the process that started it is lost: nobody has waited for it here.
    """
    ended = os.times()
    own = ended.user + ended.system + ended.children_user + ended.children_system
    return own + sum(_ticks(pid) for pid in _descendants(os.getpid())) / _TICKS_PER_S


def _descendants(pid: int) -> Iterator[int]:
    """The processes below one, by its main thread, which starts nearly all."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended, or this kernel does not tell
        return
    for child in children:
        yield int(child)
        yield from _descendants(int(child))


def _ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return sum(map(int, stat.rpartition(")")[2].split()[_TIMES]))
