"""The first runs of a search: the program unchanged, and under each single technique, with
unlimited memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ullage.errors import PlanError
from ullage.explain.device import DeviceReport
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.gpus.catalog import Gpu
from ullage.plan.costs.blocks import Block, find_blocks
from ullage.plan.costs.clocked import ClockTimes, Timed, timed
from ullage.plan.costs.profile import Profile, kept_by_module, read_profile
from ullage.plan.costs.roofline import Seconds, step_seconds
from ullage.plan.menu import Actions, moves, treatments
from ullage.techniques.made_for import MadeFor
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Action, Semantics

# Where recording the work changes the peak by more than this share, memory is measured without it.
_DISTURBANCE = 0.005
_WORTH = 0.001
# How many techniques run together, and which come first: where runs take long, the time limit may
# end the search before all were tried.
_AT_ONCE = 4
_PROMISING = (
    "checkpoint", "chunked_loss", "selective_checkpoint", "allocator", "free_gradients",
    "optimizer_offload", "offload_activations",
)  # fmt: skip


class RunRequest(NamedTuple):
    """A run of the program.

    Attributes:
        plan: that it is under; None: none.
        gpu: its device; None: unlimited memory.
        has_work: whether it records its operations.
        describes: whether it describes the model.
        is_fresh: whether it starts at the program's first line in a new process.
        replays: whether it replays the plan with real numbers instead of training.
    """

    plan: Plan | None = None
    gpu: Gpu | None = None
    has_work: bool = False
    describes: bool = False
    is_fresh: bool = False
    replays: bool = False


Runner = Callable[[Sequence[RunRequest]], list[RunReport]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one treatment of all blocks, or one move, takes; without actions, the unchanged program.

    Attributes:
        actions: of the plan.
        device: the memory of the device in a run with unlimited memory.
        profile: the memory of each stretch.
        seconds: the time of a step: by the clock, divided among the blocks as the roofline says; by
            the roofline where the unchanged program was not timed.
        time: by the clock; None: it was not timed.
    """

    actions: Actions
    device: DeviceReport
    profile: Profile
    seconds: Seconds
    time: Timed | None = None


class Measurements:
    """The first runs of a search.

    Args:
        run: makes runs.
        gpu: whose rates count.
        under: a plan that is part of all runs, such as one that shares the training among ranks;
            techniques are measured in addition to it. None: the unchanged program.

    Attributes:
        first: the run of the unchanged program.
        base: what the unchanged program takes; None: it failed, or did not run yet.
        made_for: the program, as plans name it; None: it trains no model.
        blocks: the modules that get treatments one by one.
        treatments: techniques for modules, each on all blocks.
        moves: techniques for the optimizer or the whole program.
        left_out: techniques that cannot be used with the program, and why.
        clock: turns the roofline's seconds into the clock's; None: the program did not run yet.
    """

    def __init__(self, run: Runner, gpu: Gpu, under: Plan | None = None) -> None:
        self._run = run
        self._gpu = gpu
        self._under = under
        self.first: RunReport
        self.made_for: MadeFor | None = None
        self.base: Measured | None = None
        self.blocks: tuple[Block, ...] = ()
        self.treatments: list[Measured] = []
        self.moves: list[Measured] = []
        self.left_out: dict[str, str] = {}
        self.clock: ClockTimes | None = None
        self._is_disturbed = False
        self._watching: tuple[Timed, Timed] | None = None

    def measure_program(self) -> Measured | None:
        """Runs the unchanged program; None: it failed, or trains no model."""
        self.first, with_work = self._run(
            [RunRequest(self._under, describes=True), RunRequest(self._under, has_work=True)]
        )
        outcome = self.first.program.plan
        made_for = None if outcome is None else outcome.found
        if made_for is None or not _ran(self.first) or not _ran(with_work):
            return None
        self.made_for = made_for
        # Recording every operation changes the peak a little; by more where functions are compiled,
        # which then run eagerly. There each technique runs a second time without it.
        clean, watched = (report.devices[0].totals for report in (self.first, with_work))
        moved = abs(watched.peak_allocated_bytes - clean.peak_allocated_bytes)
        self._is_disturbed = moved > _DISTURBANCE * clean.peak_allocated_bytes
        watched_time, clean_time = timed(with_work), timed(self.first)
        if watched_time is not None and clean_time is not None:
            self._watching = watched_time, clean_time
        worked = with_work.processes[0].record
        blocks = find_blocks(worked, kept_by_module(worked))
        self.blocks = tuple(
            block for block in blocks if made_for.modules.get(block.path) == block.kind
        )
        self.base = self._read((), self.first, with_work)
        return self.base

    def measure_techniques(
        self,
        allowed: Semantics,
        base: Measured,
        is_late: Callable[[], bool] = lambda: False,
        only: Collection[str] | None = None,
    ) -> None:
        """Runs each technique by itself, and keeps those that help.

        Args:
            allowed: what techniques may change.
            base: the unchanged program.
            is_late: whether no time is left for another run.
            only: the names of techniques to run; None: all.
        """
        paths = [block.path for block in self.blocks]
        every = [*moves(allowed), *(treatments(allowed, paths) if paths else ())]
        if only is not None:
            every = [each for each in every if {action.technique for action in each} <= {*only}]
        waiting = sorted(every, key=_promise)
        while waiting:
            some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            if is_late():
                late = dict.fromkeys(map(_name, [*some, *waiting]), "no time was left to try it")
                self.left_out |= late
                break
            for measurement in self._measure(some):
                if not helps(measurement, base):
                    self.left_out[_name(measurement.actions)] = "makes nothing less or faster here"
                else:
                    (self.treatments if measurement.actions[0].modules else self.moves).append(
                        measurement
                    )
        for measured in (self.treatments, self.moves):
            measured.sort(key=lambda measured: every.index(measured.actions))

    def plan(self, actions: Sequence[Action]) -> Plan:
        """A plan of these actions for the program, with those that are part of all runs.

        Raises:
            PlanError: they exclude each other.
        """
        if self.made_for is None:
            raise PlanError("there is no model that a plan could be for")
        actions = (*actions, *(() if self._under is None else self._under.actions))
        kinds = {path: self.made_for.modules[path] for action in actions for path in action.modules}
        return Plan(actions, replace(self.made_for, modules=kinds))

    def plan_to_run(self, actions: Sequence[Action]) -> Plan | None:
        """The plan of a run with these actions; None: it needs none."""
        return self.plan(actions) if actions else self._under

    def timed(self, with_work: RunReport) -> Timed | None:
        """The time of a run that recorded its operations, which places tensors otherwise: corrected
        by what that changes of the unchanged program's time.
        """
        time = timed(with_work)
        return time if time is None or self._watching is None else time.corrected(*self._watching)

    def _measure(self, tried: Sequence[Actions]) -> list[Measured]:
        requests: list[RunRequest] = []
        actionses: list[Actions] = []
        for actions in tried:
            try:
                plan = self.plan(actions)
            except PlanError as error:
                self.left_out[_name(actions)] = str(error)
                continue
            actionses.append(actions)
            requests += [RunRequest(plan)] * self._is_disturbed + [RunRequest(plan, has_work=True)]
        reports = self._run(requests) if requests else []
        width = 1 + self._is_disturbed
        measurements = []
        for actions, report, with_work in zip(
            actionses, reports[::width], reports[width - 1 :: width], strict=True
        ):
            failed = next((run for run in (report, with_work) if not _ran(run)), None)
            if failed is None:
                measurements.append(self._read(actions, report, with_work))
            else:
                self.left_out[_name(actions)] = failed.reason
        return measurements

    def _read(self, actions: Actions, report: RunReport, with_work: RunReport) -> Measured:
        seconds = step_seconds(with_work.processes[0].record, self.blocks, self._gpu)
        time = self.timed(report) if report is with_work else timed(report)
        if self.clock is None:
            self.clock = ClockTimes(seconds, 0.0 if time is None else time.step.s)
        return Measured(
            actions,
            report.devices[0],
            read_profile(report.processes[0].record, self.blocks),
            self.clock.seconds(seconds, time),
            time if self.clock.is_timed else None,
        )


def helps(measured: Measured, base: Measured) -> bool:
    """Whether a technique saves a thousandth or more of the time, or of the memory that blocks
    keep, that a stretch takes, or that the allocator reserves beyond it.
    """
    least = _WORTH * base.profile.peak_bytes
    rests = base.profile.rest_bytes.items()
    freed = max(
        (rest - measured.profile.rest_bytes.get(part, rest) for part, rest in rests), default=0
    )
    overhead, held_before = (
        each.device.totals.peak_reserved_bytes - each.device.totals.peak_allocated_bytes
        for each in (measured, base)
    )
    return (
        int((base.profile.kept_bytes - measured.profile.kept_bytes).sum()) > least
        or freed > least
        or held_before - overhead > least
        or measured.seconds.step < base.seconds.step * (1 - _WORTH)
    )


def _ran(report: RunReport) -> bool:
    return report.verdict is Verdict.FITS and bool(report.processes) and bool(report.devices)


def _promise(actions: Actions) -> tuple[int, bool]:
    """Sorts the techniques that help most programs, with their usual settings, first."""
    first = actions[0]
    place = _PROMISING.index(first.technique) if first.technique in _PROMISING else len(_PROMISING)
    return (place if not first.settings else len(_PROMISING) + place), len(actions) > 1


def _name(actions: Actions) -> str:
    return " + ".join(
        " ".join([action.technique, *map(str, action.settings.values())]) for action in actions
    )
