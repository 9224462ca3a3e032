"""Runs on the workers of an executor: of other processes, or of other machines.

    pool = ProcessPoolExecutor()            # or Ray's, dask's, submitit's: docs/reference/fit.md
    with Trials(job, executor=pool) as trials:
        as_it_is, planned = trials.run([job, job_with_a_plan])

All that is asked of an executor is `submit`. A worker returns whole reports, so the search and its
result are the same as without one. What it must have is checked before its first run; it gets the
variables and the directory of the process that searches. Jobs and reports are sent as pickles, so
workers must be as trusted as this process.
"""

from __future__ import annotations

import copyreg
import hashlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from types import MappingProxyType

from ullage.ground.errors import EnvironmentProblem, UllageError
from ullage.ground.version import __version__
from ullage.players.phantom.torch_build import find_torch
from ullage.search.runs.forks import Forks, Outcome
from ullage.search.runs.job import Job

# How long a worker keeps its processes after its last run.
_IDLE_S = 60.0


def _view_of(fields: dict[object, object]) -> MappingProxyType[object, object]:
    return MappingProxyType(fields)


# Reports have views of dicts, which pickle does not take by itself.
copyreg.pickle(MappingProxyType, lambda view: (_view_of, (dict(view),)))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings that a worker needs for a program; it gets the variables."""

    ullage: str
    directory: str
    digest: str | None
    variables: Mapping[str, str]


def submit(
    executor: Executor, program: Job, jobs: Sequence[Job], *, is_fresh: bool
) -> list[Future[Outcome]]:
    """Gives runs of a program, which copies are made of, to an executor."""
    here = surroundings_of(program)
    return [executor.submit(run_on_worker, here, program, job, is_fresh) for job in jobs]


def run_on_worker(here: Surroundings, program: Job, job: Job, is_fresh: bool) -> Outcome:  # noqa: FBT001 - of a call by place
    """A run, on the worker.

    Raises:
        EnvironmentProblem: the worker does not have what the program needs.
    """
    try:
        with _kept_forks.of(here, program) as forks:
            return forks.run(job, is_fresh=is_fresh)
    except UllageError as error:
        raise type(error)(f"worker {socket.gethostname()}: {error}") from None


class _KeptForks:
    """The processes of the program whose runs this worker makes, kept from run to run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: tuple[Surroundings, Job] | None = None
        self._forks: Forks | None = None
        self._num_going = 0
        self._end = threading.Timer(_IDLE_S, self.close)

    @contextmanager
    def of(self, here: Surroundings, program: Job) -> Iterator[Forks]:
        """Those of a program; the ones of another are ended. Several threads may have them."""
        with self._lock:
            self._end.cancel()
            if self._forks is None or self._key != (here, program):
                self._close()
                check_surroundings(here, program)
                os.environ.clear()
                os.environ.update(here.variables)
                self._key, self._forks = (here, program), Forks(program).__enter__()
                Finalize(None, self.close, exitpriority=1)  # of a process of multiprocessing, too
            forks = self._forks
            self._num_going += 1
        try:
            yield forks
        finally:
            with self._lock:
                self._num_going -= 1
                self._end = threading.Timer(_IDLE_S, self.close)
                self._end.daemon = True
                self._end.start()

    def close(self) -> None:
        """Ends them, unless a run goes on."""
        with self._lock:
            if not self._num_going:
                self._close()

    def _close(self) -> None:
        if self._forks is not None:
            self._forks.__exit__()
            self._forks = None


_kept_forks = _KeptForks()


def surroundings_of(program: Job) -> Surroundings:
    """The surroundings of this process."""
    return Surroundings(__version__, str(Path.cwd()), _digest(program), dict(os.environ))


def check_surroundings(here: Surroundings, program: Job) -> None:
    """Changes to the program's directory. Raises EnvironmentProblem if this machine does not have
    what it needs.
    """
    if __version__ != here.ullage:
        raise EnvironmentProblem(
            f"it has ullage {__version__}, and the search is made by {here.ullage}; install the "
            "same there"
        )
    try:
        os.chdir(here.directory)
    except OSError as error:
        raise EnvironmentProblem(
            f"it has no directory {here.directory!r} ({error.strerror}); the program has to be at "
            "the same path for every worker"
        ) from None
    if _digest(program) != here.digest:
        raise EnvironmentProblem(
            f"its {program.program.arguments[0]!r} in {here.directory!r} is missing or another; "
            "copy the program to the same path for every worker"
        )
    build = find_torch(program.program.python)
    if build != program.build:
        raise EnvironmentProblem(
            f"its {program.program.python!r} has torch {build.version}, not the same build of "
            f"{program.build.version}; make the same environment for every worker"
        )


def _digest(program: Job) -> str | None:
    """The digest of the program's file; None: it is a module or directory, or does not exist."""
    path = Path(program.program.directory or "", program.program.arguments[0])
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
