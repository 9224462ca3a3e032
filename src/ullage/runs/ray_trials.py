"""Runs the candidates of a search on a Ray cluster, for `ullage fit --ray`.

Each node has one actor, which has a warm process and forks as many concurrent runs as the node has
processors (trials.py). The actor returns whole reports, so the search and its result are the same
as on one machine.

    with RayTrials(job, "auto") as trials:
        as_it_is, planned = trials.run([job, job_with_a_plan])

A node must have the same version of ullage, the program, its directory and its interpreter at the
same paths, and the same torch. This is checked before the first run on it. The program gets the
environment variables of the process that searches. Modules and files that the program reads are not
compared.

Ray sends objects as pickles, so a cluster must be as trusted as this machine.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ullage.errors import EnvironmentProblem, UllageError
from ullage.explain.run import RunReport
from ullage.phantom.torch_build import find_torch
from ullage.runs.job import Job
from ullage.runs.trials import Trials
from ullage.version import __version__

# The time limit for nodes to free their processors and to be checked. Assumed.
_READY_S = 60.0
_CLOSE_S = 30.0
_CONNECT_S = 5.0
_MOST_TRIES = 2
LOCAL = "local"
# A cluster of this machine alone listens only on the loopback device, as Ray does on Windows and
# macOS without the first variable, and sends no usage statistics. ray reads these at its import.
# Source: ray 2.60, ENABLE_RAY_CLUSTER in ray/_private/ray_constants.py.
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True, slots=True)
class Place:
    """The requirements that every node must meet to run the program."""

    ullage: str
    directory: str
    digest: str | None
    variables: Mapping[str, str]


class RayTrials:
    """The runs of one program on a cluster; a context, as `Trials` is.

    Args:
        job: the program as it is.
        address: the address of the cluster: "auto" for the one that this machine is in, or
            "HOST:PORT"; "local" starts one on this machine alone.
        on_progress: called with a line when runs end.

    Attributes:
        num_runs: the number of runs that have ended.
        outputs: the last lines of the runs that failed, by the number of the run.

    Raises:
        EnvironmentProblem: on entering: ray is not installed, the cluster cannot be reached, or no
            node has what the program needs.
    """

    def __init__(
        self, job: Job, address: str, on_progress: Callable[[str], None] | None = None
    ) -> None:
        self.num_runs = 0
        self.outputs: dict[int, str] = {}
        self._job = job
        self._address = address
        self._on_progress = on_progress or (lambda _line: None)
        self._ray = _import_ray(address)
        self._nodes: list[_Node] = []
        self._has_connected = False

    def __enter__(self) -> RayTrials:
        self._has_connected = not self._ray.is_initialized()
        try:
            if self._has_connected:
                _connect(self._ray, self._address)
            self._nodes = self._find_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        closing = [node.actor.close.remote() for node in self._nodes]
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(closing, timeout=_CLOSE_S)
        for node in self._nodes:
            self._ray.kill(node.actor)
        if self._has_connected:
            self._ray.shutdown()

    def run(self, jobs: Sequence[Job], *, is_fresh: bool = False) -> list[RunReport]:
        """Runs these jobs, as many at once as the nodes have processors; returns the reports in the
        order of the jobs.

        If a node is lost, its jobs are run once more on another node. If none is left, the nodes
        that the cluster has then are used.

        Raises:
            EnvironmentProblem: the second node of a job was lost, too.
        """
        waiting, tries = deque(range(len(jobs))), Counter[int]()
        going: dict[Any, tuple[int, _Node]] = {}
        results: dict[int, RunReport] = {}
        while waiting or going:
            for node in self._nodes:
                while waiting and node.num_going < node.num_at_once:
                    number = waiting.popleft()
                    node.num_going += 1
                    going[node.actor.run.remote(jobs[number], is_fresh)] = number, node
            (done, *_), _ = self._ray.wait([*going])
            number, node = going.pop(done)
            node.num_going -= 1
            try:
                results[number] = self._note(*self._ray.get(done))
            except self._ray.exceptions.RayTaskError as error:
                raise _ours(error, node.name) from None
            except self._ray.exceptions.RayError as error:
                tries[number] += 1
                if tries[number] == _MOST_TRIES:
                    raise _lost(node.name, error) from None
                self._on_progress(f"node {node.name} is lost; what ran there is run again")
                waiting.appendleft(number)
                self._nodes = [
                    other for other in self._nodes if other is not node
                ] or self._find_nodes()
        return [results[number] for number in range(len(jobs))]

    def _note(self, result: RunReport, output: str) -> RunReport:
        self.num_runs += 1
        if output:
            self.outputs[self.num_runs] = output
        self._on_progress(f"{self.num_runs} runs")
        return result

    def _find_nodes(self) -> list[_Node]:
        """Starts an actor on each node; returns the nodes with free processors that have what the
        program needs.
        """
        ray = self._ray
        nodes = [
            _Node(ray, node["NodeID"], node["NodeManagerAddress"], int(node["Resources"]["CPU"]))
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        ]
        place = ray.put((_place(self._job), self._job))
        starting = {node.actor.begin.remote(place): node for node in nodes}
        ready, late = ray.wait([*starting], num_returns=len(starting), timeout=_READY_S)
        for reference in late:
            ray.kill(starting[reference].actor)
            self._on_progress(f"{starting[reference].name} has no processors free")
        for reference in ready:
            try:
                ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise _ours(error, starting[reference].name) from None
            except ray.exceptions.RayError as error:
                raise _lost(starting[reference].name, error) from None
        if not ready:
            raise EnvironmentProblem(
                f"no node of the Ray cluster {self._address!r} had all its processors free within "
                f"{_READY_S:.0f} s; wait until one has, or search without --ray"
            )
        return [starting[reference] for reference in ready]


class _Node:
    """A node of the cluster, and the number of current runs on it."""

    def __init__(self, ray: ModuleType, number: str, name: str, num_at_once: int) -> None:
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(number, soft=False)
        self.name = name
        self.num_at_once = num_at_once
        self.num_going = 0
        # One more than the runs, so that `close` does not wait for them.
        self.actor = (
            ray.remote(_OnNode)
            .options(
                num_cpus=num_at_once, max_concurrency=num_at_once + 1, scheduling_strategy=strategy
            )
            .remote()
        )


class _OnNode:
    """The actor on a node, in a process of Ray's."""

    def __init__(self) -> None:
        self._trials: Trials | None = None

    def begin(self, what: tuple[Place, Job]) -> None:
        """Checks that the node has what the program needs, and starts a warm process."""
        place, job = what
        check_place(place, job)
        os.environ.clear()
        os.environ.update(place.variables)
        self._trials = Trials(job).__enter__()

    def run(self, job: Job, is_fresh: bool) -> tuple[RunReport, str]:  # noqa: FBT001 - Ray's call
        """Runs a job; returns the report, and the last output of the program if it failed."""
        if self._trials is None:
            raise RuntimeError("no program was begun here")
        (result,) = self._trials.run([job], is_fresh=is_fresh)
        is_failed = result.verdict.value == "failed"
        return result, [*self._trials.outputs.values()][-1] if is_failed else ""

    def close(self) -> None:
        """Ends the warm process and its runs."""
        if self._trials is not None:
            self._trials.__exit__()


def check_place(place: Place, job: Job) -> None:
    """Changes to the program's directory. Raises EnvironmentProblem if this machine does not meet
    the requirements.
    """
    if __version__ != place.ullage:
        raise EnvironmentProblem(
            f"it has ullage {__version__}, and the search is made by {place.ullage}; install the "
            "same there"
        )
    try:
        os.chdir(place.directory)
    except OSError as error:
        raise EnvironmentProblem(
            f"it has no directory {place.directory!r} ({error.strerror}); the program has to be at "
            "the same path on every node"
        ) from None
    if _digest(job) != place.digest:
        raise EnvironmentProblem(
            f"its {job.program.arguments[0]!r} in {place.directory!r} is missing or another; copy "
            "the program to the same path on every node"
        )
    build = find_torch(job.program.python)
    if build != job.build:
        raise EnvironmentProblem(
            f"its {job.program.python!r} has torch {build.version}, not the same build of "
            f"{job.build.version}; make the same environment on every node"
        )


def _place(job: Job) -> Place:
    return Place(__version__, str(Path.cwd()), _digest(job), dict(os.environ))


def _digest(job: Job) -> str | None:
    """The digest of the program's file; None: it is a module or directory, or does not exist."""
    path = Path(job.program.directory or "", job.program.arguments[0])
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _connect(ray: ModuleType, address: str) -> None:
    options = {"include_dashboard": False} if address == LOCAL else {}
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself would wait for minutes if nothing listens
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        ray.init(address, log_to_driver=False, logging_level="ERROR", **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise EnvironmentProblem(
            f"the Ray cluster {address!r} cannot be reached: {str(error).strip()}; start one with "
            "`ray start --head`, and give its HOST:PORT, or auto on one of its machines"
        ) from None


def _import_ray(address: str) -> ModuleType:
    if address == LOCAL:
        os.environ |= _ALONE
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise EnvironmentProblem(
            "a search on a cluster needs ray, which is not installed here: pip install "
            "'ullage[ray]'"
        ) from None
    module: ModuleType = ray
    return module


def _ours(error: Any, name: str) -> BaseException:  # noqa: ANN401 - ray has no types where it is not
    """Converts an error from a node: our own errors get the node's name, others stay as is."""
    if isinstance(error.cause, UllageError):
        return type(error.cause)(f"node {name}: {error.cause}")
    whole: BaseException = error
    return whole


def _lost(name: str, error: BaseException) -> EnvironmentProblem:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return EnvironmentProblem(
        f"node {name} of the Ray cluster was lost while a run went on there: {lines[0]}; see the "
        "logs of Ray on it, or search without --ray"
    )
