"""Host memory of this process.

peak_bytes(), needed_bytes(), available_bytes()
"""

from __future__ import annotations

import contextlib
import re
import resource
from pathlib import Path

from ullage.ground.host_free import available_host_bytes
from ullage.players.inside import library

_GROUP = Path("/sys/fs/cgroup")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def peak_bytes() -> int:
    """The most that was resident at once, bytes; pages shared with other processes count too.

    Not ru_maxrss, which goes on with what the process that started this one had taken.
    """
    match = _PEAK.search(Path("/proc/self/status").read_text(encoding="ascii", errors="replace"))
    if match is None:  # a kernel that does not say so
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(match[1]) * 1024


def needed_bytes() -> int:
    """The least bytes on a machine with the GPU: there weights are filled, large copies from the
    device bring bytes, and pinned memory is resident (csrc/machine/host.c).
    """
    known: int = library.host_needed_bytes()
    return max(known, peak_bytes())


def available_bytes() -> int | None:
    """The bytes left on this machine, or in the container; None where the kernel does not say."""
    free_bytes = available_host_bytes()
    room = [] if free_bytes is None else [free_bytes]
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        limit, used = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        cache = re.search(r"^file (\d+)$", (_GROUP / "memory.stat").read_text(), re.MULTILINE)
        room.append(limit - used + (int(cache[1]) if cache else 0))
    return min(room, default=None)
