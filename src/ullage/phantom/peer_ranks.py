"""Ranks that are played for the sake of others: a rank that waits for an object which another rank
sends has that rank started beside it, which ends when it is no longer needed.

    with companions(program, options, mail, environment_of) as beside:
        ...                         # run the ranks that were asked for
        beside.note_end(0)          # rank 0 has ended: nobody needs to wait for it any more
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ullage.phantom.orphan_processes import end_strays
from ullage.phantom.program import UserProgram

_POLL_S = 0.05
_WANTED = "wanted-"


class Companions:
    """The ranks that were started because another one wants something of them.

    Args:
        program: what every rank runs.
        mail: the directory in which ranks say what they want.
        environment_of: the variables of a rank, with a directory of its own.
    """

    def __init__(
        self,
        program: UserProgram,
        mail: Path,
        environment_of: Callable[[int, Path], Mapping[str, str]],
    ) -> None:
        self._program = program
        self._mail = mail
        self._environment_of = environment_of
        self._known: set[int] = set()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._is_over = threading.Event()
        for wanted in mail.glob(f"{_WANTED}*"):  # by those of before
            wanted.unlink()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def note_start(self, rank: int) -> None:
        """A rank runs, and needs no companion in its stead."""
        self._known.add(rank)

    def note_end(self, rank: int) -> None:
        """A rank has ended: what it has not sent it never will."""
        (self._mail / f"ended-{rank}").touch()

    def close(self) -> None:
        """Ends those that still run."""
        self._is_over.set()
        self._thread.join()
        for rank, process in self._processes.items():
            process.kill()
            process.wait()
            end_strays(self._directory(rank))

    def _serve(self) -> None:
        while not self._is_over.wait(_POLL_S):
            wanted = {int(path.name[len(_WANTED) :]) for path in self._mail.glob(f"{_WANTED}*")}
            for rank in wanted - self._known:
                self._known.add(rank)
                self._start(rank)
            for rank, process in self._processes.items():
                if process.poll() is not None:
                    self.note_end(rank)

    def _start(self, rank: int) -> None:
        directory = self._directory(rank)
        directory.mkdir(exist_ok=True)
        with (directory / "output").open("wb") as output:
            self._processes[rank] = subprocess.Popen(
                [self._program.python, *self._program.arguments],
                env=dict(self._environment_of(rank, directory)),
                cwd=self._program.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _directory(self, rank: int) -> Path:
        return self._mail / f"companion-{rank}"


@contextmanager
def companions(
    program: UserProgram, mail: Path, environment_of: Callable[[int, Path], Mapping[str, str]]
) -> Iterator[Companions]:
    """Watches for wanted ranks until the context ends."""
    beside = Companions(program, mail, environment_of)
    try:
        yield beside
    finally:
        beside.close()
