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
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from ullage.errors import EnvironmentProblem
from ullage.explain.run import RunReport
from ullage.phantom.fork import REFUSAL
from ullage.phantom.launch import Child, Ended, make_environment, run_directory, start
from ullage.phantom.orphan_processes import end_orphans
from ullage.phantom.peer_ranks import PeerRanks
from ullage.phantom.warm import WarmChild, WarmProcess, start_warm
from ullage.runs.job import Job, job_peer_ranks
from ullage.runs.one import explain_job

# Each run is assumed to need the host memory of the first; runs may use this share of what is free.
_HOST_SHARE = 0.8
_TAIL_BYTES = 4000
# In the directory of a run: what its program wrote.
OUTPUT = "output"


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
        fresh_because: why none was forked; empty if they were.
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
        self.fresh_because = "" if _are_alike(jobs) else "the runs differ in more than arguments"
        self._jobs = jobs
        self._snapshots = snapshots or [None] * len(jobs)
        self._on_progress = on_progress or (lambda _line: None)
        self._on_failure = on_failure or (lambda _text: None)
        self._running = Running()
        self._warm: WarmProcess | None = None
        self._peer_ranks: PeerRanks | None = None
        self._warm_environment: dict[str, str] = {}

    def run_all(self) -> None:
        """Runs everything; an interruption leaves what is done."""
        with ExitStack() as stack:
            stack.enter_context(_terminated_as_interrupted())
            directory = stack.enter_context(run_directory())
            # Last of all, after the warm process has ended: the processes that its forks have left.
            stack.callback(end_orphans, directory)
            mail = self._jobs[0].options.mail or directory
            self._peer_ranks = stack.enter_context(job_peer_ranks(self._jobs[0], mail))
            try:
                if len(self._jobs) > 1 and not self.fresh_because:
                    self._start_warm(stack, directory)
                self._run_in_threads(range(1), 1, directory)
                self._run_in_threads(range(1, len(self._jobs)), self._num_workers(), directory)
            except KeyboardInterrupt:
                self._running.stop()

    @property
    def was_interrupted(self) -> bool:
        """Whether the user stopped them."""
        return self._running.is_stopped

    def _start_warm(self, stack: ExitStack, directory: Path) -> None:
        job = self._jobs[0]
        self._warm_environment = make_environment(directory, job.device, job.build, job.options)
        self._warm = stack.enter_context(start_warm(job.program, self._warm_environment))

    def _num_workers(self) -> int:
        """As many runs at once as there are processors, and host memory for."""
        first = self.results[0]
        needed = first.host.peak_bytes if first is not None else 0
        by_memory = int(_HOST_SHARE * _available_host_bytes() / needed) if needed else 1
        return max(1, min(len(os.sched_getaffinity(0)), by_memory))

    def _run_in_threads(self, numbers: Sequence[int], num_workers: int, directory: Path) -> None:
        with ThreadPoolExecutor(num_workers) as pool:
            pending = {
                pool.submit(self._run, number, directory / str(number)) for number in numbers
            }
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
                self._running.stop()
                raise

    def _run(self, number: int, run_dir: Path) -> None:
        job = self._jobs[number]
        run_dir.mkdir()
        output = run_dir / OUTPUT
        self._note_rank(job, PeerRanks.note_start)
        ended = None
        if self._warm is not None and not self.fresh_because:
            ended = self._fork(self._warm, job, run_dir)
        if ended is None:
            environment = make_environment(run_dir, job.device, job.build, job.options)
            with start(job.program, environment, output=output) as child:
                ended = self._running.wait(child, job.options.timeout_s)
        self._note_rank(job, PeerRanks.note_end)
        if self.was_interrupted:
            return
        result = explain_job(job, run_dir, ended[0], ended[1], self._snapshots[number])
        if result.verdict.value == "failed":
            self.outputs[number] = last_lines(output)
            self._on_failure(self.outputs[number])
        self.results[number] = result
        shutil.rmtree(run_dir, ignore_errors=True)

    def _note_rank(self, job: Job, note: Callable[[PeerRanks, int], None]) -> None:
        if self._peer_ranks is not None and job.options.rank is not None:
            note(self._peer_ranks, job.options.rank.number)

    def _fork(self, warm: WarmProcess, job: Job, run_dir: Path) -> tuple[int, Ended] | None:
        environment = make_environment(run_dir, job.device, job.build, job.options)
        changes = dict(environment.items() - self._warm_environment.items())
        try:
            return self._running.fork(warm, job, run_dir, changes)
        except EnvironmentProblem as error:
            self.fresh_because = str(error)
            return None


class Running:
    """The running jobs of all threads; stopping them also stops those that start later.

    Attributes:
        is_stopped: whether they were.
    """

    def __init__(self) -> None:
        self.is_stopped = False
        self._lock = threading.Lock()
        self._children: set[Child | WarmChild] = set()

    def stop(self) -> None:
        """Ends all."""
        with self._lock:
            self.is_stopped = True
            for child in self._children:
                child.stop()

    def wait(self, child: Child | WarmChild, timeout_s: float | None = None) -> tuple[int, Ended]:
        """Waits for a run's end; from its start on it can be stopped, and is after `timeout_s`."""
        pid = child.pid
        with self._lock:
            if self.is_stopped:
                child.stop()
            self._children.add(child)
        try:
            if isinstance(child, WarmChild):
                return pid, child.wait(timeout_s)
            with child.limited(timeout_s):
                return pid, child.wait()
        finally:
            with self._lock:
                self._children.discard(child)

    def fork(
        self, warm: WarmProcess, job: Job, run_dir: Path, changes: Mapping[str, str]
    ) -> tuple[int, Ended]:
        """Forks a run from a warm process, with other variables than that has, and waits for it.

        Raises:
            EnvironmentProblem: that process is gone, or is not what the program would have imported
                torch in.
        """
        child = warm.fork(_arguments(job), changes, run_dir / OUTPUT)
        pid, ended = self.wait(child, job.options.timeout_s)
        left_running, refusal = end_orphans(run_dir), run_dir / REFUSAL
        if refusal.exists():
            (run_dir / OUTPUT).unlink(missing_ok=True)
            raise EnvironmentProblem(refusal.read_text(encoding="utf-8"))
        return pid, replace(ended, left_running=left_running)


def _are_alike(jobs: Sequence[Job]) -> bool:
    """Whether the runs differ in nothing that the interpreter is started with."""
    return len({at_start(job) for job in jobs}) == 1


def at_start(job: Job) -> tuple[object, ...]:
    """All that the interpreter of a job is started with: equal ones can share a warm process."""
    program, options = job.program, job.options
    of_plan = {} if options.plan is None else options.plan.variables
    variables = tuple(sorted({**options.variables, **of_plan}.items()))
    return program.python, program.directory, _head(job), options.alloc_conf, variables


def _head(job: Job) -> tuple[str, ...]:
    words = job.program.arguments
    return words[: 2 if words[0] == "-m" else 1]


def _arguments(job: Job) -> tuple[str, ...]:
    return job.program.arguments[len(_head(job)) :]


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


def _available_host_bytes() -> int:
    """What the machine could still give, by its own account."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def last_lines(path: Path) -> str:
    """The last lines that a program wrote."""
    try:
        text = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-20:])
