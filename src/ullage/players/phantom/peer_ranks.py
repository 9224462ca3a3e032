"""Peer ranks: where a rank waits for an object from another rank, that rank is started too, and
ended when nobody waits for it any more.

    with peer_ranks(program, options, mail, environment_of) as peers:
        ...                        # run the ranks of the job
        peers.note_end(0)          # rank 0 has ended: nobody needs to wait for it any more
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ullage.players.phantom.orphan_processes import end_orphans
from ullage.players.phantom.program import UserProgram

_POLL_S = 0.05
_REQUEST = "wanted-"


class PeerRanks:
    """The ranks that were started because another rank waits for their data.

    Args:
        program: what every rank runs.
        mail: the directory in which ranks request each other.
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
        for request in mail.glob(f"{_REQUEST}*"):  # left by an earlier job
            request.unlink()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def note_start(self, rank: int) -> None:
        """A rank runs by itself, and is not started as a peer."""
        self._known.add(rank)

    def note_end(self, rank: int) -> None:
        """A rank has ended, and sends no more data."""
        (self._mail / f"ended-{rank}").touch()

    def close(self) -> None:
        """Ends those that still run."""
        self._is_over.set()
        self._thread.join()
        for rank, process in self._processes.items():
            process.kill()
            process.wait()
            end_orphans(self._directory(rank))

    def _serve(self) -> None:
        while not self._is_over.wait(_POLL_S):
            ranks = {int(path.name[len(_REQUEST) :]) for path in self._mail.glob(f"{_REQUEST}*")}
            for rank in ranks - self._known:
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
def peer_ranks(
    program: UserProgram, mail: Path, environment_of: Callable[[int, Path], Mapping[str, str]]
) -> Iterator[PeerRanks]:
    """Starts the ranks that others wait for, until the context ends."""
    peers = PeerRanks(program, mail, environment_of)
    try:
        yield peers
    finally:
        peers.close()
