"""The directory that stands for a machine, as NVML programs see it.

libnvidia-ml.so.1   answers them; found with LD_LIBRARY_PATH=DIRECTORY
machine             which GPUs there are: devices=8, device=name=...;total_bytes=...
PID.use             what a process uses of them (csrc/machine/published.h)
script              faults and figures that a person wants told; see script.c

machine = Machine(device.environment_text(), build.libraries_text(), num_devices=8)
open_machine(Path("node"), machine)         # runs add to it, and programs may watch
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ullage.ground.errors import SpecError
from ullage.ground.native.libraries import NVML
from ullage.players.phantom.rank import MAX_LOCAL_WORLD_SIZE, check_num_gpus

LIBRARY: Final = "libnvidia-ml.so.1"
_DESCRIPTION: Final = "machine"
_SUFFIX: Final = ".use"
_HEADER: Final = "# GPUs of ullage, for NVML programs"
_OF_A_RUN: Final = ("budget_bytes", "unlimited")


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs of a machine, all alike.

    Attributes:
        device: the properties of each, key=value;key=value.
        libraries: the versions of NVIDIA's libraries, likewise.
        num_devices: how many there are.
    """

    device: str
    libraries: str
    num_devices: int

    @property
    def name(self) -> str:
        """The GPU and its memory, as an error names them."""
        fields = dict(field.partition("=")[::2] for field in self.device.split(";"))
        return f"{fields.get('name', '?')} with {fields.get('total_bytes', '?')} bytes"

    def text(self) -> str:
        """The content of the file `machine`."""
        return (
            f"{_HEADER}\ndevices={self.num_devices}\ndevice={self.device}\n"
            f"libraries={self.libraries}\n"
        )

    @classmethod
    def parse(cls, text: str) -> Machine | None:
        """Reads what `text` wrote; None: this is none of it."""
        header, *lines = text.splitlines() or [""]
        fields = dict(line.partition("=")[::2] for line in lines)
        num_devices = fields.get("devices", "")
        if header != _HEADER or not num_devices.isdecimal() or "device" not in fields:
            return None
        return cls(fields["device"], fields.get("libraries", ""), int(num_devices))


def machine_of(device: str, libraries: str, num_devices: int, visible: str | None) -> Machine:
    """The machine of a run: the limits that the run has of its own are not the machine's.

    Args:
        device, libraries: as the native library reads them.
        num_devices: how many devices the run has.
        visible: CUDA_VISIBLE_DEVICES, which may name later ones.

    Raises:
        SpecError: no machine has this many.
    """
    check_num_gpus(num_devices)
    fields = [field for field in device.split(";") if field.partition("=")[0] not in _OF_A_RUN]
    places = [int(word) for word in (visible or "").split(",") if word.strip().isdecimal()]
    highest = max((place + 1 for place in places if place < MAX_LOCAL_WORLD_SIZE), default=0)
    return Machine(";".join(fields), libraries, max(num_devices, highest))


def open_machine(directory: Path, machine: Machine) -> None:
    """Makes the directory of a machine, or joins one that has the same GPUs.

    Raises:
        SpecError: it cannot be made, holds something else, is open to other users, or describes
            other GPUs.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(directory):
            _join(directory, machine)
    except OSError as error:
        raise _unusable(directory, error) from None


def _join(directory: Path, machine: Machine) -> None:
    present = _read(directory)
    if present is not None and present.device != machine.device:
        raise SpecError(
            f"the NVML directory {str(directory)!r} describes another GPU ({present.name}); this "
            f"run has {machine.name}; name another directory, or remove that one"
        )
    if present is not None:  # it may have more, of which this run uses the first
        num_devices = max(present.num_devices, machine.num_devices)
        machine = replace(machine, num_devices=num_devices)
    _sweep(directory)
    # A copy: it knows its machine by the directory it lies in, in a container too.
    _write(directory / LIBRARY, NVML.read_bytes())
    _write(directory / _DESCRIPTION, machine.text().encode())


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Runs that begin at once make one machine."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _write(path: Path, content: bytes) -> None:
    """Replaces a file that has another content; whoever reads it meets the one or the other."""
    if path.exists() and path.read_bytes() == content:
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.chmod(0o600)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def find_machine(directory: Path) -> Machine:
    """The machine of a directory; SpecError where there is none."""
    machine = _read(directory)
    if machine is None:
        raise SpecError(
            f"there is no NVML directory {str(directory)!r}; `ullage run --nvml DIR` makes one, or "
            "name GPUs: ullage nvml DIR --gpu h100-80gb --gpus 8"
        )
    return machine


def _read(directory: Path) -> Machine | None:
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(directory, error) from None
    if not stat.S_ISDIR(status.st_mode):
        raise SpecError(f"{str(directory)!r} is not a directory; NVML programs need one")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise SpecError(
            f"the NVML directory {str(directory)!r} is open to other users; make it private "
            "(chmod 700), or name one that does not exist yet"
        )
    try:
        machine = Machine.parse((directory / _DESCRIPTION).read_text(encoding="utf-8"))
    except FileNotFoundError:
        machine = None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(directory, error) from None
    names = {path.name for path in directory.iterdir() if not path.name.startswith(f".{LIBRARY}")}
    if machine is None and names - {LIBRARY}:
        raise SpecError(
            f"the directory {str(directory)!r} holds other files; name one for NVML that is empty "
            "or does not exist yet"
        )
    return machine


def _unusable(directory: Path, error: Exception) -> SpecError:
    why = (error.strerror if isinstance(error, OSError) else None) or error
    return SpecError(f"the NVML directory {str(directory)!r} cannot be used: {why}")


def _sweep(directory: Path) -> None:
    """Removes the files of processes that were killed."""
    for path in directory.glob(f"*{_SUFFIX}"):
        if not Path(f"/proc/{path.stem}").exists():
            path.unlink(missing_ok=True)
