"""What a search found: the plans that were tried, and what is to be said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.gpus.catalog import Gpu
from ullage.plan.costs.blocks import Block
from ullage.plan.sizes.smallest import Smallest
from ullage.techniques.plan import Foreseen, MadeFor, Plan
from ullage.techniques.replaying.outcome import Replayed
from ullage.techniques.technique import Action, Value


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run showed.

    Attributes:
        fits: it ran through, and stayed within the budget.
        reason: why it does not; empty if it does.
        used_bytes: of the device at most.
        allocated_bytes: by the allocator at most.
        num_retries: how often the allocator had to give back its cache to go on.
        host_bytes: of pinned host memory at most.
        is_refused: whether it did not run for a reason that is not memory.
    """

    fits: bool
    reason: str
    used_bytes: int
    allocated_bytes: int
    num_retries: int
    host_bytes: int
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan, and what became of it.

    Attributes:
        name: for people: "checkpoint 5 of 12 Block".
        actions: of the plan.
        step_s: seconds of a step, by the model of costs.
        peak_bytes: the most that is allocated, by the profile.
        used_bytes: of the device at most: as it was seen there, or as a run with memory without end
            or the profile has it.
        seen: of a run on the device; None: it was not run there.
        why: why it is not the one chosen; empty for that one.
        configuration: the file of the program's launcher that it stands for; empty: its own.
    """

    name: str
    actions: tuple[Action, ...]
    step_s: float
    peak_bytes: int
    used_bytes: int
    seen: Seen | None = None
    why: str = ""
    configuration: str = ""

    @property
    def is_as_it_is(self) -> bool:
        """Whether nothing of the program is changed."""
        return not self.actions and not self.configuration


class WorstRank(NamedTuple):
    """Of the ranks of a job under a plan, the one that takes the most memory.

    Attributes:
        rank: its number.
        used_bytes: of its device at most.
        num_distinct: ranks that are unlike each other, all of which were played.
        fits: whether all of them ran through.
    """

    rank: int
    used_bytes: int
    num_distinct: int
    fits: bool


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a search found.

    Attributes:
        program: its words.
        torch: its version.
        gpu: the device.
        budget_bytes: of the device, that a plan has to fit.
        blocks: the modules that are treated one by one.
        as_it_is: the program without a plan.
        best: the fastest plan that was seen to fit; None: none was.
        plan: it, to be written; None where there is none, or the program fits as it is.
        candidates: what was tried or is known of, fastest first; the best among them.
        front: (seconds of a step, what is used of the device at most) of all plans that no other
            beats, by the model.
        bound_s: no mixture of these techniques that is expected to need as little as the best takes
            a step of less.
        left_out: techniques that were not used, and why.
        smallest: the GPU of the catalogue with the least memory on which a plan was seen to fit;
            None: there is none, or it was not asked for.
        failure: why the program failed by itself; empty if it did not.
        warnings: of the run of the program as it is.
        num_runs: how many were made.
        wall_s: how long it took.
        exit_code: what the command line exits with.
        replayed: what came of the best plan's replay with real numbers; None: it was not replayed.
        made_for: the program, as plans have to name it; None: it trains nothing.
        ended: why the search did not go on to its end; empty: it did.
        num_gpus: that share the training; of each, the device and the budget.
        worst_rank: of several, that which takes the most memory under the best plan; what is said
            of candidates is rank 0.
    """

    program: tuple[str, ...]
    torch: str
    gpu: Gpu
    budget_bytes: int
    blocks: tuple[Block, ...]
    as_it_is: Candidate
    best: Candidate | None
    plan: Plan | None
    candidates: tuple[Candidate, ...]
    front: tuple[tuple[float, int], ...]
    bound_s: float
    left_out: Mapping[str, str]
    smallest: Smallest | None
    failure: str
    warnings: tuple[str, ...]
    num_runs: int
    wall_s: float
    exit_code: ExitCode
    replayed: Replayed | None = None
    made_for: MadeFor | None = None
    ended: str = ""
    num_gpus: int = 1
    worst_rank: WorstRank | None = None

    @property
    def gap(self) -> float:
        """How much faster than the best one another mixture may be, as a share of the step."""
        if self.best is None or not self.best.step_s:
            return 0.0
        return max(0.0, 1 - self.bound_s / self.best.step_s)


AS_IT_IS = "as it is"
LATE = "the time limit was reached"
INTERRUPTED = "it was interrupted"


def failed(first: RunReport, gpu: Gpu, budget_bytes: int, trains_none: str) -> FitReport:
    """The report of a program that failed by itself, as the first run of it says; or else, that it
    trains no model.
    """
    return FitReport(
        program=first.program.argv,
        torch=first.torch,
        gpu=gpu,
        budget_bytes=budget_bytes,
        blocks=(),
        as_it_is=Candidate(AS_IT_IS, (), 0.0, 0, 0),
        best=None,
        plan=None,
        candidates=(),
        front=(),
        bound_s=0.0,
        left_out={},
        smallest=None,
        failure=trains_none if first.verdict is Verdict.FITS else first.reason,
        warnings=first.warnings,
        num_runs=0,
        wall_s=0.0,
        exit_code=first.exit_code or ExitCode.PROGRAM_FAILED,
    )


def foreseen(observation: Seen, step_s: float, gpu: Gpu, budget_bytes: int) -> Foreseen:
    """What a plan's file says of it."""
    return Foreseen(
        gpu=gpu.slug,
        budget_bytes=budget_bytes,
        peak_used_bytes=observation.used_bytes,
        peak_allocated_bytes=observation.allocated_bytes,
        step_s=step_s,
        host_bytes=observation.host_bytes,
    )


def name_plan(actions: Sequence[Action], blocks: Sequence[Block]) -> str:
    """What a plan does, in words: "checkpoint 5 of 12 Block, allocator expandable_segments"."""
    kinds = Counter(block.kind for block in blocks)
    kind_of = {block.path: block.kind for block in blocks}
    parts = []
    for action in actions:
        words = [
            name if value is True else f"{value}" if isinstance(value, str) else f"{name}={value}"
            for name, value in action.settings.items()
        ]
        counter = Counter(kind_of[path] for path in action.modules if path in kind_of)
        words += [f"{count} of {kinds[kind]} {kind}" for kind, count in counter.items()]
        parts.append(" ".join([action.technique, *words]))
    return ", ".join(parts) or AS_IT_IS


Key = tuple[tuple[str, tuple[str, ...], tuple[tuple[str, Value], ...]], ...]


def key_of(actions: Sequence[Action]) -> Key:
    """What tells one plan from another."""
    return tuple(
        (action.technique, action.modules, tuple(sorted(action.settings.items())))
        for action in actions
    )
