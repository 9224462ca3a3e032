"""The rungs of a guard: plans of which each takes less memory than the one before.

Rung 0 is the unchanged program. Only techniques that give the same numbers bit for bit, and that
leave parameters and the optimizer where they are, can be put on and taken off between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any, Final

from ullage.act.guard.failure import say
from ullage.act.guard.host.host_memory import Room, find_room
from ullage.act.techniques.applying.default_rungs import choose_plans
from ullage.act.techniques.ladder_file import RUNGS, LadderFile, is_ladder
from ullage.act.techniques.plan import Plan
from ullage.ground.errors import PlanError
from ullage.ground.units import format_bytes

# Checks that the host has memory for what a rung moves to it; else the kernel ends the process.

_OFFLOADS: Final = "offload_activations"
# PyTorch rounds pinned memory up to powers of two.
_ROUNDED: Final = 2


class HostCheck:
    """Which rungs the host has memory for.

    Args:
        plans: of the rungs from 1 on.
        find: the memory that the process can still take.
        find_step_bytes: the most that a step has had on the GPU, for plans without a run.

    Attributes:
        skipped: the rungs that were left out when they were asked for last.
        is_on: whether any is left out. Several ranks must choose the same, so they leave out none.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        find: Callable[[], Room] = find_room,
        find_step_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.skipped: set[int] = set()
        self.is_on = True
        self._plans = plans
        self._find = find
        self._find_step_bytes = find_step_bytes or _step_bytes
        self._pinned: set[int] = set()

    def next_below(self, rung: int) -> int:
        """The next rung that the host has memory for; one after the last where there is none."""
        for number in range(rung + 1, len(self._plans) + 1):
            reason = self._why_not(number) if self.is_on else None
            if reason is None:
                self.skipped.discard(number)
                return number
            if number not in self.skipped:
                say(reason)
            self.skipped.add(number)
        return len(self._plans) + 1

    def next_above(self, rung: int) -> int:
        """The nearest rung before it that was not left out."""
        return next(number for number in range(rung - 1, -1, -1) if number not in self.skipped)

    def _why_not(self, rung: int) -> str | None:
        plan = self._plans[rung - 1]
        if all(action.technique != _OFFLOADS for action in plan.actions) or rung in self._pinned:
            return None
        foreseen = 0 if plan.foreseen is None else plan.foreseen.host_bytes
        needed = foreseen or _ROUNDED * self._find_step_bytes()
        room = self._find()
        if needed > room.free_bytes:
            basis = "as on the phantom" if foreseen else "at most, as a step had on the GPU"
            return (
                f"left out rung {rung} ({plan.summary}): it takes {format_bytes(needed)} of the "
                f"host's memory ({basis}), and {room.text}"
            )
        # PyTorch keeps what was pinned once.
        self._pinned.add(rung)
        return None


def _step_bytes() -> int:
    """The most that was allocated on the GPU beyond what is there between steps."""
    import torch

    if not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())


# The proofs in a ladder file, for people, and whether it is for the GPU at hand.


def say_proofs(file: LadderFile) -> list[str]:
    """A line for each rung, and one where the GPU has less memory than that of the proofs."""
    lines = []
    for number, rung in enumerate(file.rungs):
        proof = rung.proof
        if proof is None:
            lines.append(f"rung {number} is proved for no {file.variable}")
            continue
        time = f", {1e3 * proof.step_s:.2f} ms a step" if proof.step_s else ""
        reserved, budget = map(format_bytes, (proof.reserved_bytes, file.budget_bytes))
        lines.append(
            f"rung {number} is proved up to {file.variable} {proof.size} on the phantom "
            f"{file.gpu}: {reserved} reserved of {budget}{time}"
        )
    total_bytes = _total_bytes()
    if total_bytes is not None and total_bytes < file.budget_bytes:
        lines.append(
            f"nothing is proved here: this GPU has {format_bytes(total_bytes)}, and the ladder was "
            f"made for {format_bytes(file.budget_bytes)}; make another with `ullage fit --ladder`"
        )
    return lines


def _total_bytes() -> int | None:
    """The memory of the present GPU; None: there is none, or it was not used yet."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.mem_get_info()[1])


AS_IT_IS = "the unchanged program"


class Ladder:
    """The plans, and the one that is applied.

    Args:
        plans: from the fastest to the leanest; not the unchanged program.
        model: the `nn.Module`.
        optimizer: one or several, as `Plan.apply` takes them.
        is_default: whether the plans were chosen without a run.
        file: where the plans are from, if it says up to which size each is proved.

    Attributes:
        rung: the number of the rung; 0 is the unchanged program.
        num_splits: how many rungs there are below those of plans, on which the batch of the present
            step is split into 2, 4, ... parts under the last of the plans.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        model: Any,
        optimizer: Any,
        *,
        is_default: bool = False,
        file: LadderFile | None = None,
    ) -> None:
        self.rung = 0
        self.num_splits = 0
        self._plan = 0
        self._file = file
        self._plans = tuple(plans)
        self._program = model, optimizer
        self._is_default = is_default
        self._applied = ExitStack()
        self._host = HostCheck(self._plans)

    def __len__(self) -> int:
        return len(self._plans) + 1 + self.num_splits

    @property
    def num_parts(self) -> int:
        """Into how many parts the batch of a step is split on the present rung."""
        return self._num_parts(self.rung)

    def allow_splits(self, num_splits: int) -> None:
        """Sets how many rungs split the batch, and leaves one that does not exist any more."""
        self.num_splits = num_splits
        if self.rung >= len(self):
            self.go_to(self._plan)

    def splits(self, rung: int) -> bool:
        """True if a rung splits the batch, which is not the same bit for bit."""
        return rung > len(self._plans)

    @property
    def text(self) -> str:
        """Its rungs in words, and what is known of them."""
        names = [f"{rung}. {plan.summary}" for rung, plan in enumerate(self._plans, 1)]
        if self._is_default:
            names.append("none of them is proved to fit; `ullage fit` makes plans that are")
        if not self._plans:
            return f"one rung: {AS_IT_IS}; a step is run again once, with the cache given back"
        return "; ".join([f"{len(self)} rungs: 0. {AS_IT_IS}", *names])

    @property
    def proofs(self) -> list[str]:
        """The proofs of rungs that have one, by runs on the phantom."""
        if self._file is not None:
            return say_proofs(self._file)
        return [
            f"rung {rung} took {format_bytes(plan.foreseen.peak_used_bytes)} on the phantom "
            f"{plan.foreseen.gpu}"
            for rung, plan in enumerate(self._plans, 1)
            if plan.foreseen is not None
        ]

    def name(self, rung: int | None = None) -> str:
        """The name of a rung, by default the present one."""
        number = self.rung if rung is None else rung
        plan = self._plan_of(number)
        what = self._plans[plan - 1].summary if plan else AS_IT_IS
        parts = f", the batch in {self._num_parts(number)} parts" if self.splits(number) else ""
        return f"rung {number} ({what}{parts})"

    def go_to(self, rung: int) -> None:
        """Undoes the plan that is applied, and applies that of a rung."""
        plan = self._plan_of(rung)
        if plan != self._plan:
            self._applied.close()
            self.rung = self._plan = 0
            if plan:
                self._applied.enter_context(self._plans[plan - 1].applied(*self._program))
                self._plan = plan
        self.rung = rung

    def below(self, rung: int) -> int:
        """The next leaner rung, without those for which the host has no memory, which is said; one
        after the last where there is none.
        """
        return self._host.next_below(rung) if rung < len(self._plans) else rung + 1

    def next_try(self, rung: int, *, is_first: bool, may_split: bool) -> int | None:
        """The rung on which a step that failed is run next; None: there is none left. Before the
        batch is split, and before it is given up, a step that began on the last rung is run on it
        once more: what was cached, or another's, may be free by now.

        Args:
            rung: where it has failed.
            is_first: whether it has failed once.
            may_split: whether its batch can be split now.
        """
        leaner = self.below(rung)
        is_left = leaner < len(self) and (may_split or not self.splits(leaner))
        if is_first and (not is_left or self.splits(leaner) > self.splits(rung)):
            return rung
        return leaner if is_left else None

    def above(self, rung: int) -> int:
        """The next rung that is not so lean, without those for which the host has no memory."""
        return rung - 1 if self.splits(rung - 1) else self._host.next_above(rung)

    def tried(self, first: int, last: int) -> list[int]:
        """The rungs from a first to a last one, without those for which the host had no memory."""
        return [rung for rung in range(first, last + 1) if rung not in self._host.skipped]

    def _plan_of(self, rung: int) -> int:
        return self._host.next_above(len(self._plans) + 1) if self.splits(rung) else rung

    def _num_parts(self, rung: int) -> int:
        return 1 << max(0, rung - len(self._plans))

    def ignore_host(self) -> None:
        """From now on no rung is left out for want of the host's memory."""
        self._host.is_on = False

    def check(self) -> None:
        """Applies each plan once, and undoes it.

        Raises:
            PlanError: one of them is for another program, or does not go with this one.
        """
        for rung in range(len(self)):
            self.go_to(rung)
        self.close()

    def close(self) -> None:
        """Undoes the plan that is applied."""
        self.go_to(0)


def load_plans(plans: Iterable[Plan | str | PathLike[str]]) -> list[Plan]:
    """The plans of a ladder.

    Raises:
        PlanError: a file is not a plan, or a plan cannot be put on and taken off between steps.
    """
    loaded = [plan for each in plans for plan in _load(each)]
    for plan in loaded:
        for action in plan.actions:
            if action.technique not in RUNGS:
                raise PlanError(
                    f"a rung of a guard cannot have {action.technique!r}; the guard puts on and "
                    "takes off between two steps only what gives the same numbers bit for bit: "
                    f"{', '.join(RUNGS)}"
                )
        if not plan.actions:
            raise PlanError("a rung has no actions; the unchanged program is the first rung anyway")
    return loaded


def _load(plan: Plan | str | PathLike[str]) -> Sequence[Plan]:
    """A plan, or those of a file, which may be a ladder."""
    if isinstance(plan, Plan):
        return [plan]
    path = Path(plan)
    return LadderFile.load(path).plans if is_ladder(path) else [Plan.load(path)]


def load_ladder(path: str | PathLike[str]) -> LadderFile:
    """The ladder in a file of `ullage fit --ladder`.

    Raises:
        PlanError: it is none, or a plan of it cannot be put on and taken off between steps.
    """
    file = LadderFile.load(Path(path))
    load_plans(file.plans)
    return file


def open_ladder(
    plans: str | PathLike[str] | Sequence[Plan | str | PathLike[str]] | None,
    model: Any,
    optimizer: Any,
) -> Ladder:
    """The ladder of a guard.

    Args:
        plans: plans and files of plans, or one file of `ullage fit --ladder`; None: checkpoints.
        model: the `nn.Module`.
        optimizer: one or several.

    Raises:
        PlanError: a plan cannot be a rung, or the model has no repeated blocks.
    """
    if plans is None:
        return Ladder(choose_plans(model, optimizer), model, optimizer, is_default=True)
    if isinstance(plans, str | PathLike):
        file = load_ladder(plans)
        return Ladder(file.plans, model, optimizer, file=file)
    return Ladder(load_plans(plans), model, optimizer)
