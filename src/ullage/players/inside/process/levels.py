"""The mark of a process that uses a device: a file in the run's directory that others can read
while the process runs, and after it was killed.

    PID.begun       512 bytes: why there is no record, where it could not be written; else blank
                    then what its devices hold and have held, which csrc/machine/basis.c keeps there

    mark = begin(run_dir, os.getpid())              # in the process
    read_levels(mark).devices[0].peak_allocated_bytes       # in another one
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ullage.players.inside import library

WRITING = "it was ended while it wrote its record"
"""The excuse of a process that is at it."""
_SUFFIX = ".begun"
_EXCUSE_BYTES = 512
_MAX_DEVICES = 64
_POSITION, _DEVICE = struct.Struct("=Q"), struct.Struct("=6Q")


@dataclass(frozen=True, slots=True)
class DeviceLevels:
    """The bytes that a process holds of a device, and the most it has held, in bytes; `num_ooms` is
    how often there was no room.
    """

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_non_torch_bytes: int
    num_ooms: int


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of a mark: `position` is how many allocator events there were, `devices` are those
    that were used, by number.
    """

    excuse: str
    position: int
    devices: Mapping[int, DeviceLevels]

    @property
    def num_ooms(self) -> int:
        """The number of times that there was no room, on any device."""
        return sum(device.num_ooms for device in self.devices.values())


def begin(run_dir: Path, pid: int) -> Path:
    """Makes the mark of this process; a disk that takes nothing leaves it without one."""
    mark = run_dir / f"{pid}{_SUFFIX}"
    excuse(mark, "")
    library.share_levels(os.fsencode(mark), _EXCUSE_BYTES)
    return mark


def excuse(mark: Path | None, why: str) -> None:
    """Notes why there is no record; as the disk may be full by now, there is room for it."""
    text = why.encode(errors="replace")[:_EXCUSE_BYTES].ljust(_EXCUSE_BYTES)
    with contextlib.suppress(OSError):
        number = os.open(mark or "", os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(number, text, 0)
        os.close(number)


def find_marks(run_dir: Path) -> dict[int, Path]:
    """The marks of a run by the number of the process."""
    return {int(path.stem): path for path in sorted(run_dir.glob(f"*{_SUFFIX}"))}


def read_levels(mark: Path) -> Levels:
    """Reads the levels of a mark; nothing where it is not there, or was cut short."""
    try:
        content = mark.read_bytes()
    except OSError:
        content = b""
    excuse = content[:_EXCUSE_BYTES].decode(errors="replace").strip()
    body = content[_EXCUSE_BYTES:]
    if len(body) < _POSITION.size + _MAX_DEVICES * _DEVICE.size:
        return Levels(excuse, 0, {})
    rows = _DEVICE.iter_unpack(body[_POSITION.size :][: _MAX_DEVICES * _DEVICE.size])
    devices = {index: DeviceLevels(*row) for index, row in enumerate(rows) if any(row)}
    return Levels(excuse, _POSITION.unpack_from(body)[0], devices)
