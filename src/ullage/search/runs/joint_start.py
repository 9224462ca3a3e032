"""The starts of a program under a supervisor, and how each ended. Where a launcher has started a
supervisor for each rank, these start their ranks again together.

    with open_job() as job:
        notes = job.begin(0)                # the directory for what ends this rank in start 0
        failure = job.failure               # of all ranks, once it has ended
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from ullage.act.guard.end_note import EndNote, find_failure
from ullage.ground.errors import SpecError
from ullage.players.phantom.launch import run_directory

_ENDED = "ended"
# A rank that is asked to end has 30 s for it.
_DEADLINE_S = 120.0
# A program that closes its connections in a `finally` does so before its error is noted.
_GRACE_S = 2.0
_POLL_S = 0.1
# Ranks of one count meet in the store of torchrun, which counts its own restarts from 0.
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_APART = 1000


class Job:
    """The starts of a program.

    Args:
        directory: for the notes of all starts.
        rank: that this supervisor has started.
        num_ranks: of the supervisors that have the directory in common.
    """

    def __init__(self, directory: Path, rank: int = 0, num_ranks: int = 1) -> None:
        self.rank, self.is_joint = rank, num_ranks > 1
        self._directory, self._num_ranks = directory, num_ranks
        self._start = directory

    def begin(self, number: int) -> Path:
        """The directory for what this supervisor's processes note in the start of a number."""
        self._start = self._directory / str(number)
        own = self._start / str(self.rank)
        own.mkdir(parents=True)
        return own

    @property
    def failure(self) -> EndNote | None:
        """The exception that has ended the start, on whichever rank; None: none has, so far."""
        return find_failure([*self._start.glob("*")])

    def find_failure(self) -> EndNote | None:
        """The same, once this rank has ended: another may be about to say why."""
        limit_s = time.monotonic() + _GRACE_S * self.is_joint
        while (failure := self.failure) is None or not failure.is_out_of_memory:
            if time.monotonic() > limit_s:
                break
            time.sleep(_POLL_S)
        return failure

    def wait_for_all(self) -> str:
        """Says that this rank has ended, and waits until all have; returns why they cannot be
        started again, if so.
        """
        (self._start / str(self.rank) / _ENDED).touch()
        limit_s = time.monotonic() + _DEADLINE_S
        while len([*self._start.glob(f"*/{_ENDED}")]) < self._num_ranks:
            if time.monotonic() > limit_s:
                return f"a rank that did not is still there after {_DEADLINE_S:.0f} s, or has ended"
            time.sleep(_POLL_S)
        return ""


def variables_of(number: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that the ranks of a start need to meet each other, and not those of another."""
    count = environment.get(_RESTARTS, "")
    return {_RESTARTS: str(int(count) + number * _APART)} if count.isdecimal() else {}


@contextmanager
def open_job(environment: Mapping[str, str] = os.environ) -> Iterator[Job]:
    """The job of a program: that of all ranks where this process stands for one of them.

    Raises:
        SpecError: the ranks are on several machines, or another user has their directory.
    """
    size = environment.get("WORLD_SIZE", "1")
    if size == "1" or not {"RANK", "MASTER_PORT"} <= environment.keys():
        with run_directory() as directory:
            yield Job(directory)
        return
    if environment.get("LOCAL_WORLD_SIZE", size) != size:
        raise SpecError(
            f"{environment['LOCAL_WORLD_SIZE']} of {size} ranks are on this machine; a guard "
            "starts them again where all are on one"
        )
    place = f"{environment.get('MASTER_ADDR')}:{environment['MASTER_PORT']}"
    name = f"ullage-{os.getuid()}-{sha256(place.encode()).hexdigest()[:16]}"
    directory = Path(tempfile.gettempdir(), name)
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid != os.getuid():
        raise SpecError(
            f"{str(directory)!r} is a link or another user's; set TMPDIR to another directory"
        )
    with (directory / "lock").open("w") as lock:
        # The kernel gives it back for who is killed: whoever is alone finds what they left.
        if _is_alone(lock.fileno()):
            for path in filter(Path.is_dir, directory.iterdir()):
                shutil.rmtree(path)
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield Job(directory, int(environment["RANK"]), int(size))
        finally:
            if _is_alone(lock.fileno()):
                shutil.rmtree(directory, ignore_errors=True)


def _is_alone(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
