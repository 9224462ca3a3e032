"""Runs several jobs in parallel, as memory and processors allow, forked from a warm process.

The first runs alone: what it takes of the host says how many others may run at once. A program that
sets environment variables before it imports torch could change how torch behaves: the run that did
is started afresh, as are all that come later.

    runs = ParallelRuns(jobs, on_progress=print, on_failure=print)
    runs.run_all()
    runs.results
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from ullage.explain.run import RunReport
from ullage.ground.host_free import available_host_bytes
from ullage.players.phantom.peer_ranks import PeerRanks
from ullage.search.runs.forks import Forks, at_start
from ullage.search.runs.job import Job, job_peer_ranks

# Each run is assumed to need the host memory of the first; runs may use this share of what is free.
_HOST_SHARE = 0.8


class ParallelRuns:
    """Several jobs: which are done, which are running, and how they are started.

    Args:
        jobs: what to run.
        on_progress: called with a line, such as "3 of 8 runs", as runs end.
        on_failure: called with the last output of a program that failed.
        snapshots: for each job the file for its snapshot, if any, which must not exist.

    Attributes:
        results: of each job; None where it was interrupted.
        outputs: the last lines of each job whose program failed.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        on_progress: Callable[[str], None] | None,
        on_failure: Callable[[str], None] | None,
        snapshots: Sequence[Path | None] = (),
    ) -> None:
        self.results: list[RunReport | None] = [None] * len(jobs)
        self.outputs: dict[int, str] = {}
        is_alike = len({at_start(job) for job in jobs}) == 1
        self._unlike = "" if is_alike else "the runs differ in more than arguments"
        self._jobs = jobs
        self._snapshots = snapshots or [None] * len(jobs)
        self._on_progress = on_progress or (lambda _line: None)
        self._on_failure = on_failure or (lambda _text: None)
        self._forks = Forks(jobs[0], may_prefork=False)
        self._peer_ranks: PeerRanks | None = None

    def run_all(self) -> None:
        """Runs everything; an interruption leaves what is done."""
        with ExitStack() as stack:
            stack.enter_context(_terminated_as_interrupted())
            forks = stack.enter_context(self._forks)
            mail = self._jobs[0].options.mail or forks.directory
            self._peer_ranks = stack.enter_context(job_peer_ranks(self._jobs[0], mail))
            try:
                self._run_in_threads(range(1), 1)
                self._run_in_threads(range(1, len(self._jobs)), self._num_workers())
            except KeyboardInterrupt:
                forks.stop()

    @property
    def was_interrupted(self) -> bool:
        """True if the user stopped them."""
        return self._forks.is_stopped

    @property
    def fresh_because(self) -> str:
        """Why none is forked any more; empty if they are."""
        return self._unlike or self._forks.fresh_because

    def _num_workers(self) -> int:
        """As many runs at once as there are processors, and host memory for."""
        first = self.results[0]
        needed = first.host.peak_bytes if first is not None else 0
        by_memory = int(_HOST_SHARE * (available_host_bytes() or 0) / needed) if needed else 1
        return max(1, min(len(os.sched_getaffinity(0)), by_memory))

    def _run_in_threads(self, numbers: Sequence[int], num_workers: int) -> None:
        with ThreadPoolExecutor(num_workers) as pool:
            pending = {pool.submit(self._run, number) for number in numbers}
            try:
                while pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    ended = sum(result is not None for result in self.results)
                    self._on_progress(f"{ended} of {len(self._jobs)} runs")
            except BaseException:
                for future in pending:
                    future.cancel()
                self._forks.stop()
                raise

    def _run(self, number: int) -> None:
        job = self._jobs[number]
        is_fresh = len(self._jobs) == 1 or bool(self.fresh_because)
        self._note_rank(job, PeerRanks.note_start)
        result, output = self._forks.run(job, is_fresh=is_fresh, snapshot=self._snapshots[number])
        self._note_rank(job, PeerRanks.note_end)
        if result.verdict.value == "failed":
            self.outputs[number] = output
            self._on_failure(output)
        self.results[number] = result

    def _note_rank(self, job: Job, note: Callable[[PeerRanks, int], None]) -> None:
        if self._peer_ranks is not None and job.options.rank is not None:
            note(self._peer_ranks, job.options.rank.number)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP stop a sweep as Ctrl-C does, so that no run outlives it; where somebody
    handles them already (the command line) or ignores them (nohup), that stays.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one must not disturb the clean-up
        raise KeyboardInterrupt

    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
