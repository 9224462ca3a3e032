"""How much memory the host still has for this process: by its own free memory, and by the limits of
the process's control groups, beyond which the kernel ends processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ullage.ground.host_free import available_host_bytes
from ullage.ground.units import format_bytes

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
# What version 1 says where there is no limit is near 2^63, rounded to pages.
_NO_LIMIT: Final = 2**60


class Room(NamedTuple):
    """Memory that the host has left.

    Attributes:
        free_bytes: the least among the places.
        place: which place that is.
    """

    free_bytes: int
    place: str

    @property
    def text(self) -> str:
        """The free memory and its place, in words."""
        return f"{format_bytes(self.free_bytes)} are free in {self.place}"


def find_room(proc: Path = PROC, cgroups: Path = CGROUPS) -> Room:
    """The memory that this process can still take.

    Args:
        proc: of the kernel's facts; another folder in tests.
        cgroups: where the control groups are mounted.
    """
    rooms = list(_of_groups(proc, cgroups))
    free_bytes = available_host_bytes(proc)
    if free_bytes is not None:
        rooms.insert(0, Room(free_bytes, "the memory of the host"))
    return min(rooms, default=Room(_NO_LIMIT, "a system that does not say"))


def _of_groups(proc: Path, cgroups: Path) -> Iterator[Room]:
    """The bytes left in the control group of the process, and in each that it is in."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _of_each(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _of_each(
                cgroups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                "total_inactive_file",
            )  # fmt: skip


def _of_each(
    root: Path, path: str, limit_name: str, usage_name: str, cache_name: str
) -> Iterator[Room]:
    """The bytes left in a group and those around it. In a container the group's path is that of the
    host, and its own files are at the root.
    """
    group = root / path.lstrip("/")
    folders = [group, *group.parents] if group.is_dir() else [root]
    for folder in folders:
        if not folder.is_relative_to(root):
            break
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is not None and usage is not None and limit < _NO_LIMIT:
            # The kernel takes the cache of files back before it ends a process.
            free = limit - usage + _cache_bytes(folder / "memory.stat", cache_name)
            name = f"the control group {'/' + str(folder.relative_to(root)).strip('.')!r}"
            yield Room(max(0, min(free, limit)), f"{name}, whose limit is {format_bytes(limit)}")


def _cache_bytes(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    """The number in a file; None: there is none, as where a limit is "max"."""
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
