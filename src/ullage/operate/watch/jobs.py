"""The recorded jobs of this user that are running, as they publish themselves, and those that have
just run out of memory.

    reader = JobReader(os.environ)
    jobs, problems = reader.read()

Files are read again only if they have changed. What belongs to another user, is a link, or is no
such document is not trusted: it is a problem that the sample's notes name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ullage.ground.protocol.job import Job, JobFileError, is_of_now, jobs_directory, read_job

_Stamp = tuple[int, int, int]


class JobReader:
    """Reads the directory in which jobs publish themselves."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._known: dict[str, tuple[_Stamp, Job | str]] = {}

    def read(self) -> tuple[tuple[Job, ...], tuple[str, ...]]:
        """The jobs of now by their numbers, and what is wrong with files that are not read."""
        try:
            directory = jobs_directory(self._environment)
            with os.scandir(directory) as entries:
                names = sorted(entry.name for entry in entries if entry.name.endswith(".json"))
        except FileNotFoundError:
            self._known = {}
            return (), ()
        except (JobFileError, OSError) as error:
            self._known = {}
            return (), (str(error),)
        self._known = {
            name: known for name in names if (known := self._read(directory / name)) is not None
        }
        states = [state for _, state in self._known.values()]
        jobs = [state for state in states if isinstance(state, Job) and is_of_now(state)]
        problems = tuple(state for state in states if isinstance(state, str))
        return tuple(sorted(jobs, key=lambda job: job.pid)), problems

    def _read(self, path: Path) -> tuple[_Stamp, Job | str] | None:
        """The file's stamp and its job, or the problem with it; None if it is gone."""
        try:
            status = path.lstat()
        except OSError:
            return None
        stamp = status.st_ino, status.st_mtime_ns, status.st_size
        known = self._known.get(path.name)
        if known is not None and known[0] == stamp:
            return known
        try:
            return stamp, read_job(path)
        except FileNotFoundError:
            return None
        except JobFileError as error:
            return stamp, f"{path.name}: {error}"
        except OSError as error:
            return stamp, f"{path.name}: {error.strerror or error}"
