"""The result of a search: the plans that it tried, and the best of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from ullage.act.techniques.catalog import semantics_of
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Foreseen, Plan
from ullage.act.techniques.replaying.outcome import Replayed
from ullage.act.techniques.technique import Action, Semantics, Value
from ullage.clock.price import Expense, price_steps
from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.protocol.plain import As, Mark, Only, document_of, figure
from ullage.search.costs.blocks import Block
from ullage.search.costs.clocked import Timed
from ullage.search.objective import Objective
from ullage.search.sizes.smallest import Smallest


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a run of a plan.

    Attributes:
        fits: whether it ended without an error, and stayed within the budget.
        reason: why it does not fit; empty if it does.
        used_bytes: the peak of the memory in use on the device.
        allocated_bytes: the peak of the allocated memory.
        num_retries: how often the allocator released its cache and tried again.
        host_bytes: the peak of pinned host memory.
        is_refused: whether it failed for another reason than memory.
    """

    fits: bool
    reason: Annotated[str, Mark.NO_KEY]
    used_bytes: Annotated[int, As("peak_used_bytes")]
    allocated_bytes: Annotated[int, As("peak_allocated_bytes")]
    num_retries: Annotated[int, As("num_alloc_retries")]
    host_bytes: int
    is_refused: Annotated[bool, Mark.NO_KEY] = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan, and the result of its run if it has one.

    Attributes:
        name: for people: "checkpoint 5 of 12 Block".
        actions: of the plan.
        step_s: likely seconds of a step, by the clock; of a plan that no run timed, the sum of what
            its techniques add.
        peak_bytes: the peak of the allocated memory, by the profile.
        used_bytes: the peak of the memory in use on the device: by a run there, or else by a run
            with unlimited memory or by the profile.
        seen: the run on the device; None: it did not run there.
        why: why it was not chosen; empty for the best plan.
        configuration: the launcher's file that it stands for; empty: the program's own.
        time: what the clock says of its run; None: it has none that was timed.
    """

    name: str
    actions: tuple[Action, ...]
    step_s: float
    peak_bytes: Annotated[int, As("peak_allocated_bytes")]
    used_bytes: Annotated[int, As("peak_used_bytes")]
    seen: Seen | None = None
    why: Annotated[str, As("why_not"), Mark.NULL] = ""
    configuration: Annotated[str, Mark.NULL] = ""
    time: Timed | None = None

    @figure
    def semantics(self) -> Semantics:
        """The change of the training's results."""
        return semantics_of(self.actions)

    @property
    def token_s(self) -> float:
        """Seconds for each token, to rank plans that differ in both; for each step where the number
        of tokens is not known.
        """
        return self.step_s / max(1, 0 if self.time is None else self.time.num_tokens)

    @property
    def is_as_it_is(self) -> bool:
        """True if nothing of the program is changed."""
        return not self.actions and not self.configuration


@dataclass(frozen=True, slots=True)
class WorstRank:
    """The rank of a job that takes the most memory under a plan.

    Attributes:
        rank: its number.
        used_bytes: the peak of the memory in use on its device.
        num_distinct: the number of distinct ranks, which all ran.
        fits: whether all of them fit.
    """

    rank: int
    used_bytes: int
    num_distinct: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """The result of a search.

    Attributes:
        program: its command line.
        torch: its version.
        gpu: the device.
        budget_bytes: the memory of the device that a plan may use.
        blocks: the modules that get treatments one by one.
        as_it_is: the program without a plan.
        best: the fastest plan whose run fits; None: there is none.
        plan: the best plan, to be written to a file; None: there is none, or none is needed.
        candidates: all known plans, fastest first, with the best.
        front: the Pareto front of all plans by the model: (seconds of a step, peak of the memory in
            use).
        bound_s: a lower bound, by the model, of the step time of all mixtures of these techniques
            that need no more memory than the best.
        left_out: techniques that were not used, and why.
        smallest: the GPU of the catalogue with the least memory on which a plan fits; None: there
            is none, or the search did not look for it.
        failure: why the program failed by itself; empty if it did not.
        warnings: of the run of the unchanged program.
        num_runs: how many runs the search made.
        wall_s: how long it took.
        exit_code: of the command line.
        replayed: the outcome of the best plan's replay with real numbers; None: there was none.
        made_for: the program, as plans name it; None: it trains nothing.
        ended: why the search ended early; empty: it did not.
        num_gpus: the GPUs that share the training; device and budget are those of each.
        worst_rank: the rank with the highest peak under the best plan, where there are several; the
            candidates show rank 0.
        price: dollars for the hour of a GPU; None: not known.
        objective: what was looked for.
        corrections: what measurements correct in the times of the unchanged program, and what they
            do not; empty: there are none.
    """

    program: tuple[str, ...]
    torch: str
    gpu: Annotated[Gpu, Only("slug")]
    budget_bytes: int
    blocks: tuple[Block, ...] = ()
    as_it_is: Annotated[Candidate, Mark.NO_KEY]
    best: Annotated[Candidate | None, Mark.NO_KEY] = None
    plan: Plan | None = None
    candidates: Annotated[tuple[Candidate, ...], Mark.NO_KEY] = ()
    front: Annotated[tuple[tuple[float, int], ...], Mark.NO_KEY] = ()
    bound_s: float = 0.0
    left_out: Mapping[str, str] = field(default_factory=dict)
    smallest: Smallest | None = None
    failure: Annotated[str, Mark.NULL]
    warnings: tuple[str, ...]
    num_runs: int = 0
    wall_s: float = 0.0
    exit_code: ExitCode
    replayed: Replayed | None = None
    made_for: Annotated[MadeFor | None, Mark.NO_KEY] = None
    ended: Annotated[str, Mark.NULL] = ""
    num_gpus: int = 1
    worst_rank: WorstRank | None = None
    price: Annotated[float | None, As("gpu_hour_dollars")] = None
    objective: Objective = Objective.TIME
    corrections: Annotated[tuple[str, ...], Mark.NO_KEY] = ()

    SCHEMA: ClassVar[str] = "ullage.fit/1"

    @figure
    def verdict(self) -> str:
        """The answer: the program fits unchanged, under a plan, or not at all."""
        if self.failure:
            return "failed"
        if self.best is None:
            return "does_not_fit"
        return "fits" if self.best.is_as_it_is else "fits_under_plan"

    @figure
    def total_bytes(self) -> int:
        """The memory of the device."""
        return self.gpu.total_bytes

    @figure
    def plans(self) -> Annotated[Mapping[str, Any], Mark.FLAT]:
        """The plans with their costs, and the Pareto fronts: of all, and of those that ran."""
        return {
            "best": None if self.best is None else self._priced(self.best),
            "as_it_is": self._priced(self.as_it_is),
            "candidates": [self._priced(candidate) for candidate in self.candidates],
            "front": [{"step_s": time, "peak_used_bytes": used} for time, used in self.front],
            "front_of_runs": [
                {
                    "name": candidate.name,
                    "step_s": candidate.step_s,
                    "time": candidate.time,
                    "peak_used_bytes": candidate.used_bytes,
                }
                for candidate in self.front_of_runs
            ],
        }

    def _priced(self, candidate: Candidate) -> Mapping[str, Any]:
        return document_of(candidate) | {"cost": self.cost(candidate)}

    @figure
    def smallest_gpu(self) -> str | None:
        """The slug of the smallest GPU."""
        return None if self.smallest is None else self.smallest.gpu

    @property
    def untimed(self) -> tuple[Candidate, ...]:
        """The plans that no run timed: their times are sums."""
        return tuple(plan for plan in self.candidates if plan.time is None)

    @property
    def front_of_runs(self) -> list[Candidate]:
        """The Pareto front: no other plan that ran needs less memory and no more time."""
        return front_of([each for each in self.candidates if self.is_size_known(each)])

    def is_size_known(self, candidate: Candidate) -> bool:
        """True if the peak is known; it is not if a run stopped within the budget."""
        outcome = candidate.seen
        return outcome is None or outcome.fits or candidate.used_bytes > self.budget_bytes

    def cost(self, candidate: Candidate) -> Expense | None:
        """The cost of a plan's steps on all GPUs; None: no price is known, or no time."""
        if self.price is None or candidate.time is None:
            return None
        time = candidate.time
        return price_steps(time.step, time.num_tokens, self.price, self.num_gpus)

    @figure
    def gap(self) -> Annotated[float, As("gap_frac")]:
        """How much faster than the best plan another may be, as a share of the step; 0: no bound is
        known.
        """
        if self.best is None or not self.best.step_s or not self.bound_s:
            return 0.0
        return max(0.0, 1 - self.bound_s / self.best.step_s)


def front_of(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The Pareto front of time and memory, fastest first."""
    front: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: (each.step_s, each.used_bytes)):
        if not front or candidate.used_bytes < front[-1].used_bytes:
            front.append(candidate)
    return front


AS_IT_IS = "unchanged"
LATE = "the time limit was reached"
INTERRUPTED = "it was interrupted"


def failed(first: RunReport, gpu: Gpu, budget_bytes: int, trains_none: str) -> FitReport:
    """The report of a program that failed in its first run, or that trains no model."""
    return FitReport(
        program=first.program.argv,
        torch=first.torch,
        gpu=gpu,
        budget_bytes=budget_bytes,
        as_it_is=Candidate(AS_IT_IS, (), 0.0, 0, 0),
        failure=trains_none if first.verdict is Verdict.FITS else first.reason,
        warnings=first.warnings,
        exit_code=first.exit_code or ExitCode.PROGRAM_FAILED,
        corrections=() if first.time is None else first.time.corrections,
    )


def with_prediction(
    plan: Plan | None, observation: Seen | None, step_s: float, gpu: Gpu, budget_bytes: int, *,
    replayed: str = "",
) -> Plan | None:  # fmt: skip
    """A plan as in its file, with what its run showed; None: there is no plan, or no run."""
    if plan is None or observation is None:
        return None
    used, allocated = observation.used_bytes, observation.allocated_bytes
    prediction = Foreseen(
        gpu.slug, budget_bytes, used, allocated, step_s, observation.host_bytes, replayed=replayed
    )
    return replace(plan, foreseen=prediction)


def name_plan(actions: Sequence[Action], blocks: Sequence[Block]) -> str:
    """The name of a plan: "checkpoint 5 of 12 Block, allocator expandable_segments"."""
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


def kind_of(actions: Sequence[Action]) -> Key:
    """The identity of plans that differ in their modules alone."""
    return key_of([replace(action, modules=()) for action in actions])


def key_of(actions: Sequence[Action]) -> Key:
    """The identity of a plan."""
    return tuple(
        (action.technique, action.modules, tuple(sorted(action.settings.items())))
        for action in actions
    )
