"""The largest batch, or other size, with which a program fits: as it is, and under plans.

Each answer was seen: on the device the program ran with that size and did not with the next. Plans
come from a ladder that is measured at one size, where the program as it is does not fit any more:
its leanest rungs, of which the one that gets farthest is the answer, and a few between, since the
largest size is not always the fastest for each sample.

It starts no process itself: a `SizedRunner` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.gpus.catalog import Gpu
from ullage.plan.cost import step_seconds
from ullage.plan.findings import Seen, name_plan
from ullage.plan.ladder import Ladder
from ullage.plan.measure import Measured, Measurements, Runner, Wanted
from ullage.plan.menu import Actions
from ullage.plan.search import judge
from ullage.plan.sizes import FIRST, Sizes
from ullage.plan.trying import Rung
from ullage.techniques.plan import Foreseen, Plan
from ullage.techniques.technique import Semantics

SizedRunner = Callable[[Sequence[tuple[int, Wanted]]], list[RunReport]]

# Of the ladder's rungs: how many of the last are tried for the largest size, and how many between.
_LEAN = 2
_BETWEEN = 3
# The ladder is measured at so many times the size that fits as it is.
_BEYOND = 2
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """The largest size under one plan.

    Attributes:
        name: of the plan, for people.
        actions: of the plan; empty: the program as it is.
        size: the largest that was seen to fit.
        seen: what the run with it showed.
        beyond: the next size; None: none was found that does not fit.
        why_not: why that does not fit.
        step_s: seconds of a step with that size, by the model of costs; 0: not known.
        plan: it, to be written; None for the program as it is.
    """

    name: str
    actions: Actions
    size: int
    seen: Seen
    beyond: int | None
    why_not: str
    step_s: float = 0.0
    plan: Plan | None = None

    @property
    def unit_s(self) -> float:
        """Seconds for one of the size, such as a sample of a batch."""
        return self.step_s / self.size


@dataclass(frozen=True, slots=True)
class LargestReport:
    """What a search for the largest size found.

    Attributes:
        program: its words, with {NAME} where the size goes.
        variable: that name.
        step: only multiples of it were tried.
        torch: its version.
        gpu: the device.
        budget_bytes: of the device, that a run has to fit.
        as_it_is: without a plan; None: no size fits so.
        answers: under each plan that no other beats in size and time, the largest size first; the
            program as it is among them.
        left_out: techniques that were not used, and why.
        failure: why the program failed by itself; empty if it did not.
        warnings: of its first run.
        num_runs: how many were made.
        wall_s: how long it took.
    """

    program: tuple[str, ...]
    variable: str
    step: int
    torch: str
    gpu: Gpu
    budget_bytes: int
    as_it_is: Answer | None
    answers: tuple[Answer, ...]
    left_out: Mapping[str, str]
    failure: str
    warnings: tuple[str, ...]
    num_runs: int = 0
    wall_s: float = 0.0

    @property
    def best(self) -> Answer | None:
        """The largest size, the fastest of several; None: nothing fits."""
        return self.answers[0] if self.answers else None

    @property
    def fastest(self) -> Answer | None:
        """The least time for one of the size; None: not known."""
        timed = [one for one in self.answers if one.step_s > 0]
        return min(timed, key=lambda one: one.unit_s, default=None)

    @property
    def exit_code(self) -> ExitCode:
        """What the command line exits with."""
        if self.failure:
            return ExitCode.PROGRAM_FAILED
        return ExitCode.FINE if self.answers else ExitCode.ANSWER_IS_NO


class LargestSearch:
    """What is known of one program with any size on one GPU.

    Args:
        run: makes runs.
        gpu: the device.
        budget_bytes: of it, that a run has to fit.
        step: only multiples of it are tried.
    """

    def __init__(self, run: SizedRunner, gpu: Gpu, budget_bytes: int, step: int = 1) -> None:
        self._run = run
        self._gpu = gpu
        self._budget_bytes = budget_bytes
        self._step = step
        self._first: RunReport | None = None
        self._known: Measurements | None = None

    def find(
        self, program: Sequence[str], variable: str, allowed: Semantics | None
    ) -> LargestReport:
        """The largest sizes; under plans too where `allowed` says what techniques may change."""
        plain = self._plain()
        first = self._first
        if first is None:
            raise RuntimeError("nothing was run")
        has_failed = first.verdict is Verdict.FAILED
        found = [] if has_failed else [*self._answers((), plain)]
        # A size without end needs no plan.
        if allowed is not None and not has_failed and plain.beyond is not None:
            found += self._planned(plain, allowed)
        answers = _front(self._timed(found))
        known = self._known
        return LargestReport(
            program=tuple(program),
            variable=variable,
            step=self._step,
            torch=first.torch,
            gpu=self._gpu,
            budget_bytes=self._budget_bytes,
            as_it_is=next((one for one in answers if not one.actions), None),
            answers=tuple(answers),
            left_out={} if known is None else known.left_out,
            failure=first.reason if has_failed else "",
            warnings=first.warnings,
        )

    def _planned(self, plain: Sizes, allowed: Semantics) -> Iterator[Answer]:
        """The largest size under each plan that is worth trying.

        What is lean where the optimizer's states are most of the peak is not lean where activations
        are: where plans get far, they are looked for again, that far.
        """
        size = _BEYOND * (plain.largest or self._step)
        for _ in range(_ROUNDS):
            known = Measurements(self._at(size), self._gpu)
            base = known.measure_program()
            if base is None:
                return
            self._known = known
            known.measure_techniques(allowed, base)
            ladder = Ladder(known, base)
            rungs = [one for one in ladder.rungs if ladder.actions(one)]
            expects = partial(self._expected, plain, base, size)
            lean = [*self._climbed(ladder, rungs[-_LEAN:], expects)]
            reached = max((one.size for one in lean), default=0)
            if reached <= _BEYOND * size:
                break
            size = reached
        yield from lean
        yield from self._climbed(ladder, _between(rungs), expects)

    def _at(self, size: int) -> Runner:
        return lambda wanted: self._run([(size, one) for one in wanted])

    def _climbed(
        self, ladder: Ladder, rungs: Sequence[Rung], expects: Callable[[Rung], Sizes]
    ) -> Iterator[Answer]:
        for rung in rungs:
            actions = ladder.actions(rung)
            yield from self._answers(actions, self._climb(actions, expects(rung)))

    def _plain(self) -> Sizes:
        """The program as it is: two sizes where memory is without end tell where to look."""
        small, large = (self._step * one for one in FIRST)
        reports = self._run([(small, Wanted()), (large, Wanted())])
        self._first = next((one for one in reports if one.verdict is Verdict.FITS), None)
        if self._first is None or not all(one.devices for one in reports):
            return self._climb((), self._sizes())
        low, high = (max(d.peak_used_bytes for d in one.devices) for one in reports)
        slope = (high - low) // (large - small)
        if reports[1].verdict is not Verdict.FITS or slope <= 0:
            return self._climb((), self._sizes())
        return self._climb((), self._from_line(large, high, high - slope * large))

    def _expected(self, plain: Sizes, base: Measured, size: int, rung: Rung) -> Sizes:
        """Sizes that begin where a rung is expected to reach the budget."""
        if plain.largest is None:
            return self._sizes()
        used, before = base.device.peak_used_bytes, plain.seen[plain.largest].used_bytes
        slope = max(0, used - before) // (size - plain.largest)
        outside_bytes = used - base.device.totals.peak_reserved_bytes
        return self._from_line(size, rung.reserved_bytes + outside_bytes, used - slope * size)

    def _from_line(self, size: int, used_bytes: int, fixed_bytes: int) -> Sizes:
        """Sizes that begin where a line through what is used with one reaches the budget."""
        fixed_bytes = max(0, fixed_bytes)
        reached = size * (self._budget_bytes - fixed_bytes) // max(1, used_bytes - fixed_bytes)
        first = max(reached // self._step, 1) * self._step
        return self._sizes(fixed_bytes, (first, first + self._step))

    def _sizes(self, fixed_bytes: int | None = None, first: Sequence[int] = ()) -> Sizes:
        return Sizes(self._budget_bytes, step=self._step, fixed_bytes=fixed_bytes, first=first)

    def _climb(self, actions: Actions, sizes: Sizes) -> Sizes:
        """Tries sizes on the device until the largest is found."""
        while wanted := sizes.next():
            reports = self._run([(size, Wanted(self._plan(actions), self._gpu)) for size in wanted])
            for size, report in zip(wanted, reports, strict=True):
                sizes.note(size, judge(report, self._budget_bytes))
            for report in reports:
                if self._first is None or self._first.verdict is Verdict.FAILED:
                    self._first = report
        return sizes

    def _plan(self, actions: Actions) -> Plan | None:
        return self._known.plan(actions) if self._known is not None and actions else None

    def _answers(self, actions: Actions, sizes: Sizes) -> Iterator[Answer]:
        """What a climb found, if any size fits."""
        if sizes.largest is None:
            return
        beyond = sizes.beyond
        blocks = () if self._known is None else self._known.blocks
        yield Answer(
            name_plan(actions, blocks),
            actions,
            sizes.largest,
            sizes.seen[sizes.largest],
            beyond,
            "" if beyond is None else sizes.seen[beyond].reason,
        )

    def _timed(self, answers: Sequence[Answer]) -> Iterator[Answer]:
        """With the seconds of a step: of a run with that size where memory is without end, since
        watching every operation takes some.
        """
        blocks = () if self._known is None else self._known.blocks
        wanted = [(one.size, Wanted(self._plan(one.actions), has_work=True)) for one in answers]
        for one, report in zip(answers, self._run(wanted) if wanted else (), strict=True):
            step_s = 0.0
            if report.verdict is Verdict.FITS and report.processes:
                step_s = step_seconds(report.processes[0].record, blocks, self._gpu).step
            yield replace(one, step_s=step_s, plan=self._to_write(one, step_s))

    def _to_write(self, one: Answer, step_s: float) -> Plan | None:
        plan = self._plan(one.actions)
        if plan is None:
            return None
        foreseen = Foreseen(
            gpu=self._gpu.slug,
            budget_bytes=self._budget_bytes,
            peak_used_bytes=one.seen.used_bytes,
            peak_allocated_bytes=one.seen.allocated_bytes,
            step_s=step_s,
            host_bytes=one.seen.host_bytes,
        )
        return replace(plan, foreseen=foreseen)


def _front(found: Iterable[Answer]) -> list[Answer]:
    """Those that no other beats in size and time, and the program as it is; the largest first."""
    front: list[Answer] = []
    for one in sorted(found, key=lambda one: (-one.size, one.step_s)):
        if not one.actions or all(one.unit_s < other.unit_s for other in front):
            front.append(one)
    return front


def _between(rungs: Sequence[Rung]) -> list[Rung]:
    """Some rungs before the leanest, evenly spaced in memory."""
    others = rungs[:-_LEAN]
    if not others:
        return []
    most, least = rungs[0].reserved_bytes, rungs[-1].reserved_bytes
    aims = [most - (most - least) * number // _BETWEEN for number in range(_BETWEEN)]
    nearest = [min(others, key=lambda one: abs(one.reserved_bytes - aim)) for aim in aims]
    return [*dict.fromkeys(nearest)]
