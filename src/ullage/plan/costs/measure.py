"""What a program takes as it is, and under each technique by itself: the runs that a search begins
with, where memory is without end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ullage.errors import PlanError
from ullage.explain.device import DeviceReport
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.gpus.catalog import Gpu
from ullage.plan.costs.blocks import Block, find_blocks
from ullage.plan.costs.profile import Profile, kept_by_module, read_profile
from ullage.plan.costs.roofline import Seconds, step_seconds
from ullage.plan.menu import Actions, moves, treatments
from ullage.techniques.plan import MadeFor, Plan
from ullage.techniques.technique import Action, Semantics

# A watched run whose peak is off by more than this share is not taken for the memory.
_DISTURBANCE = 0.005
_WORTH = 0.001
# Techniques that are run together, and those that come first: where each run takes long, a search
# may be ended before all were tried.
_AT_ONCE = 4
_PROMISING = (
    "checkpoint", "chunked_loss", "selective_checkpoint", "allocator", "free_gradients",
    "optimizer_offload", "offload_activations",
)  # fmt: skip


class RunRequest(NamedTuple):
    """A run that is wanted: under which plan, on which GPU (None: with memory without end), what is
    to be recorded, whether it has to be from the program's first line in a process of its own, and
    whether the plan is replayed with real numbers in place of the training.
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
    """What one treatment of all blocks, or one move, took; without actions, the program as it is.

    Attributes:
        actions: of the plan.
        device: what the run took of it, where memory is without end.
        profile: its memory.
        seconds: its time.
    """

    actions: Actions
    device: DeviceReport
    profile: Profile
    seconds: Seconds


class Measurements:
    """The runs of a search that come first.

    Args:
        run: makes runs.
        gpu: whose rates count.
        under: a plan that all runs are under, such as one that shares the training among ranks;
            what is done beside it is measured. None: the program as it is.

    Attributes:
        first: of the program as it is.
        base: what it takes; None: it did not run, or not yet.
        made_for: the program, as plans have to name it; None where it trains no model.
        blocks: the modules that are treated one by one.
        treatments: techniques for modules, each on all blocks.
        moves: what concerns the optimizer or the whole program.
        left_out: techniques that do not go with the program, and why.
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
        self._is_disturbed = False

    def measure_program(self) -> Measured | None:
        """Runs the program as it is; None: it failed, or trains nothing that a plan is for."""
        self.first, with_work = self._run(
            [RunRequest(self._under, describes=True), RunRequest(self._under, has_work=True)]
        )
        outcome = self.first.program.plan
        made_for = None if outcome is None else outcome.found
        if made_for is None or not _ran(self.first) or not _ran(with_work):
            return None
        self.made_for = made_for
        # Watching every operation moves the peak a little; by more where functions are compiled,
        # which then run eagerly. There each technique is run a second time, unwatched.
        clean, watched = (report.devices[0].totals for report in (self.first, with_work))
        moved = abs(watched.peak_allocated_bytes - clean.peak_allocated_bytes)
        self._is_disturbed = moved > _DISTURBANCE * clean.peak_allocated_bytes
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
    ) -> None:
        """Runs each technique that may be used by itself; those that help are kept.

        is_late: whether no time is left to begin another run.
        """
        paths = [block.path for block in self.blocks]
        every = [*moves(allowed), *(treatments(allowed, paths) if paths else ())]
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
        """A plan of these actions for the program, with those that all runs are under.

        Raises:
            PlanError: they do not go together.
        """
        if self.made_for is None:
            raise PlanError("there is no model that a plan could be for")
        actions = (*actions, *(() if self._under is None else self._under.actions))
        kinds = {path: self.made_for.modules[path] for action in actions for path in action.modules}
        return Plan(actions, replace(self.made_for, modules=kinds))

    def plan_to_run(self, actions: Sequence[Action]) -> Plan | None:
        """What a run of these actions is under; None: nothing."""
        return self.plan(actions) if actions else self._under

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
        return Measured(
            actions,
            report.devices[0],
            read_profile(report.processes[0].record, self.blocks),
            step_seconds(with_work.processes[0].record, self.blocks, self._gpu),
        )


def helps(measured: Measured, base: Measured) -> bool:
    """Whether a technique makes anything less by a thousandth: what blocks keep, what a stretch
    takes, what the allocator holds beside it, or the time.
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
    """What comes first: techniques that help most programs, in the way that is usual."""
    first = actions[0]
    place = _PROMISING.index(first.technique) if first.technique in _PROMISING else len(_PROMISING)
    return (place if not first.settings else len(_PROMISING) + place), len(actions) > 1


def _name(actions: Actions) -> str:
    return " + ".join(
        " ".join([action.technique, *map(str, action.settings.values())]) for action in actions
    )
