"""The first runs of a search: the program unchanged, and under each single technique, with
unlimited memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action, Semantics
from ullage.explain.device import DeviceReport
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.errors import PlanError
from ullage.log.model import Int64Array
from ullage.search.costs.blocks import Block, find_blocks
from ullage.search.costs.clocked import Seconds, Timed, step_seconds, timed
from ullage.search.costs.profile import Profile, kept_by_module, read_profile
from ullage.search.launchers.shardings import Sharding
from ullage.search.menu import Actions, moves, treatments

_WORTH = 0.001
# Blocks of one class do the same work where what they keep differs by no more than this share: of
# equal ones by 1 %, as some keep what others take from elsewhere (examples/gpt2).
_ALIKE = 0.05
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
        describes: whether it describes the model.
        is_fresh: whether it starts at the program's first line in a new process.
        replays: whether it replays the plan with real numbers instead of training.
        sharding: how the ranks share the training by a launcher's file; None: as the program does.
        kinds: the classes of the blocks, which that file names.
        is_last: whether it is the last rank, rather than the first.
    """

    plan: Plan | None = None
    gpu: Gpu | None = None
    describes: bool = False
    is_fresh: bool = False
    replays: bool = False
    sharding: Sharding | None = None
    kinds: tuple[str, ...] = ()
    is_last: bool = False


Runner = Callable[[Sequence[RunRequest]], list[RunReport]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The costs of a treatment of all blocks, or of a move; without actions, the unchanged program.

    Attributes:
        actions: of the plan.
        device: the memory of the device in a run with unlimited memory.
        profile: the memory of each stretch.
        seconds: the time of a step, and of each block.
        time: what the clock says of the run; None: it was not timed.
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
    """

    def __init__(self, run: Runner, under: Plan | None = None) -> None:
        self._alike: Int64Array
        self._run = run
        self._under = under
        self.first: RunReport
        self.made_for: MadeFor | None = None
        self.base: Measured | None = None
        self.blocks: tuple[Block, ...] = ()
        self.treatments: list[Measured] = []
        self.moves: list[Measured] = []
        self.left_out: dict[str, str] = {}

    @property
    def all(self) -> tuple[Measured, ...]:
        """The unchanged program, then each technique by itself; empty before the first run."""
        return () if self.base is None else (self.base, *self.treatments, *self.moves)

    def measure_program(self) -> Measured | None:
        """Runs the unchanged program; None: it failed, or trains no model."""
        (self.first,) = self._run([RunRequest(self._under, describes=True)])
        outcome = self.first.program.plan
        made_for = None if outcome is None else outcome.found
        if made_for is None or not has_run(self.first):
            return None
        self.made_for = made_for
        kept_bytes = kept_by_module(self.first.processes[0].record)
        self.blocks = find_blocks(made_for.modules, kept_bytes)
        self.base = self._read((), self.first)
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
            requests.append(RunRequest(plan))
        measurements = []
        reports = self._run(requests) if requests else []
        for actions, report in zip(actionses, reports, strict=True):
            if has_run(report):
                measurements.append(self._read(actions, report))
            else:
                self.left_out[_name(actions)] = report.reason
        return measurements

    def _read(self, actions: Actions, report: RunReport) -> Measured:
        profile = read_profile(report.processes[0].record, self.blocks)
        if self.base is None:
            self._alike = _group(self.blocks, profile)
        seconds = step_seconds(report, self.blocks).evened(self._alike)
        if self.base is not None:
            seconds = seconds.beside(self.base.seconds)
        return Measured(actions, report.devices[0], profile, seconds, timed(report))


def _group(blocks: Sequence[Block], profile: Profile) -> Int64Array:
    """For each block the number of its group: of one class, that keep about as much memory."""
    first: list[tuple[str, int]] = []  # of each group
    numbers = []
    for block, num_bytes in zip(blocks, profile.kept_bytes.tolist(), strict=True):
        own = (
            number
            for number, (kind, of_first) in enumerate(first)
            if kind == block.kind and abs(num_bytes - of_first) <= _ALIKE * of_first
        )
        numbers.append(number := next(own, len(first)))
        if number == len(first):
            first.append((block.kind, num_bytes))
    return np.array(numbers, dtype=np.int64)


def helps(measured: Measured, base: Measured) -> bool:
    """True if a technique saves a thousandth or more of the time, or of the memory that blocks
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


def has_run(report: RunReport) -> bool:
    """True if a run came to its end, on a device."""
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
