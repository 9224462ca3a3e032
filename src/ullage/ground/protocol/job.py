"""The publication of a recorded job for a watcher on the same machine: a small file that is
replaced as a whole, so that neither a thread nor a socket is needed in the job.

    $XDG_RUNTIME_DIR/ullage/jobs/PID.json       else /tmp/ullage-UID/jobs/PID.json

    publish_job(job, jobs_directory(os.environ, make=True))     # in the job, at most once a second
    job = read_job(job_path(directory, pid))        # in the watcher
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from ullage.ground.parsing import parse_json
from ullage.ground.protocol.plain import restore

SCHEMA: Final = "ullage.job/1"
MAX_BYTES: Final = 4096
MAX_STEP_PEAKS: Final = 64
_MAX_NAME_CHARS = 64
_LINGER_S = 5.0  # for watchers that look every second or two
_CLOCK_SLACK_S = 2.0  # the kernel counts a process's start in ticks since a boot of whole seconds


class JobFileError(ValueError):
    """The directory or the file of a job has the wrong owner, size or fields."""


class StepPeak(NamedTuple):
    """The highest bytes of one step, over the job's fullest device, and how long it took."""

    step: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class JobDevice:
    """The allocator's state on one device.

    Attributes:
        index: the device's number in the job.
        uuid: the device's, as NVML writes it ("GPU-..."); None: torch does not tell.
        allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes: as
            torch.cuda.memory_stats() has them now.
        allocated_peak_bytes, reserved_peak_bytes: since the process began, whoever reset them.
        num_alloc_retries, num_ooms: likewise.
        num_device_frees: how often the allocator gave a segment back; None: torch does not count.
        total_bytes: of the device, as CUDA reports them.
    """

    index: int
    uuid: str | None
    allocated_bytes: int
    reserved_bytes: int
    active_bytes: int
    inactive_split_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    num_alloc_retries: int
    num_ooms: int
    num_device_frees: int | None
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """The publication of one process.

    Attributes:
        pid: as the job sees it; in a container that is not the host's number.
        started_s, updated_s: the times of the recording's begin and of this state (s since the
            epoch).
        name: the base name of the program, without its arguments.
        rank, world_size: of a job with ranks; None: there are none.
        devices: those that hold memory of this process.
        phase: what the job is doing: "forward", "backward" or "optimizer"; None: it is between
            them, or recorded in the mode "counters", which notes no phases.
        step: the number of steps that are finished; None: none is, or there are no steps.
        step_seconds: how long the last one took.
        scaler_skips: how many steps the gradient scaler has skipped; None: there is no scaler.
        step_peaks: of the last steps, oldest first; at most 64, and fewer where the file would grow
            beyond 4 KiB.
        num_devices_left_out: devices for which the file has no room.
        ended_s: when the recording ended after memory had run out (s since the epoch); None: it
            goes on. A job that ends otherwise leaves no file.
    """

    pid: int
    started_s: float
    updated_s: float
    name: str
    devices: tuple[JobDevice, ...]
    rank: int | None = None
    world_size: int | None = None
    phase: str | None = None
    step: int | None = None
    step_seconds: float | None = None
    scaler_skips: int | None = None
    step_peaks: tuple[StepPeak, ...] = ()
    num_devices_left_out: int = 0
    ended_s: float | None = None


def jobs_directory(environment: Mapping[str, str], *, make: bool = False) -> Path:
    """The directory of the files; with `make` it is made, for this user alone.

    Raises:
        JobFileError: it belongs to another user, others may write to it, or it is a link.
        OSError: it cannot be made.
    """
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    uid = os.geteuid()
    root = Path(runtime) / "ullage" if os.path.isabs(runtime) else Path(f"/tmp/ullage-{uid}")  # noqa: PTH117
    directory = root / "jobs"
    for folder in (root, directory):
        if make:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700, parents=folder is root)
        _check_owner(folder, uid)
    return directory


def _check_owner(folder: Path, uid: int) -> None:
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise JobFileError(f"{str(folder)!r} is not a directory; remove it")
    if status.st_uid != uid:
        raise JobFileError(
            f"{str(folder)!r} belongs to user {status.st_uid}, not to this user ({uid}); set "
            "XDG_RUNTIME_DIR to a directory of your own"
        )
    if status.st_mode & 0o077:
        raise JobFileError(
            f"{str(folder)!r} is open to other users (mode {stat.S_IMODE(status.st_mode):o}); "
            f"run: chmod 700 {folder}"
        )


def job_path(directory: Path, pid: int) -> Path:
    """The file of a process."""
    return directory / f"{pid}.json"


def publish_job(job: Job, directory: Path) -> Path:
    """Replaces the file of a job, whole or not at all; returns its path.

    Raises:
        OSError: it cannot be written.
    """
    path = job_path(directory, job.pid)
    aside = path.with_suffix(".part")
    number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(number, _to_text(job).encode())
    finally:
        os.close(number)
    aside.replace(path)
    return path


def withdraw_job(directory: Path, pid: int) -> None:
    """Removes the file of a process, if there is one."""
    for path in (job_path(directory, pid), job_path(directory, pid).with_suffix(".part")):
        with contextlib.suppress(OSError):
            path.unlink()


def remove_ended_jobs(directory: Path) -> None:
    """Removes the files that processes have left which ran out of memory, once nobody is to see
    them any more.
    """
    for path in directory.glob("*.json"):
        with contextlib.suppress(JobFileError, OSError):
            job = read_job(path)
            if not is_of_now(job):
                path.unlink()


def _to_text(job: Job) -> str:
    """The document in at most MAX_BYTES: the oldest steps go first, then the emptiest devices."""
    name = job.name[:_MAX_NAME_CHARS]
    job = replace(job, name=name, step_peaks=job.step_peaks[-MAX_STEP_PEAKS:])
    while len(text := _dump(job)) > MAX_BYTES:
        if job.step_peaks:
            excess = len(text) - MAX_BYTES
            per_step = len(json.dumps(job.step_peaks, separators=(",", ":"))) / len(job.step_peaks)
            job = replace(job, step_peaks=job.step_peaks[max(1, int(excess / per_step)) :])
        else:
            emptiest = min(job.devices, key=lambda device: device.reserved_bytes)
            devices = tuple(device for device in job.devices if device is not emptiest)
            job = replace(job, devices=devices, num_devices_left_out=job.num_devices_left_out + 1)
    return text


def _dump(job: Job) -> str:
    return json.dumps({"schema": SCHEMA, **asdict(job)}, separators=(",", ":"), allow_nan=False)


def read_job(path: Path) -> Job:
    """Reads the file of a job.

    Raises:
        JobFileError: it is another user's, too large, or not such a document.
        OSError: it is not there, or cannot be read.
    """
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise JobFileError("not a regular file of this user")
        content = os.read(number, MAX_BYTES + 1)
    finally:
        os.close(number)
    if len(content) > MAX_BYTES:
        raise JobFileError(f"more than {MAX_BYTES} bytes")
    return parse_job(content)


def parse_job(content: bytes) -> Job:
    """Reads the text of a job's file; fields that are not known here are ignored.

    Raises:
        JobFileError: it is not such a document.
    """
    try:
        document = parse_json(content)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"not a document of schema {SCHEMA!r}")
        return restore(Job, document, "job")
    except ValueError as error:
        raise JobFileError(str(error)) from None


def is_running(job: Job) -> bool:
    """True if the process that published this is alive, as far as /proc tells.

    False where it has ended, and where its number now belongs to a process that began later.
    """
    try:
        words = Path(f"/proc/{job.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        uptime_s = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        begun_s = int(words[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return False
    begin_s = time.time() - (uptime_s - begun_s)
    return words[0] not in "ZX" and begin_s <= job.started_s + _CLOCK_SLACK_S


def is_of_now(job: Job) -> bool:
    """True if a job is running, or has ended a moment ago after memory ran out: nobody may have
    looked since.
    """
    if job.ended_s is None:
        return is_running(job)
    return abs(time.time() - job.ended_s) < _LINGER_S
