"""The largest batch, or other size, with which a program fits: unchanged, and under plans.

Runs confirm each answer: on the device the program fits with that size and not with the next. The
plans are rungs of a ladder, measured at a size at which the unchanged program does not fit: the
leanest rungs, one of which reaches the largest size, and a few others, since the largest size is
not always the fastest for each sample.

It starts no process itself: a `SizedRunner` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

from ullage.act.techniques.catalog import semantics_of
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Semantics
from ullage.clock.compare import Order, compare
from ullage.clock.step_time import Interval
from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.protocol.plain import As, Mark, Only, figure
from ullage.search.costs.clocked import Timed, timed
from ullage.search.costs.measure import Measurements, Runner, RunRequest
from ullage.search.findings import Seen, kind_of, name_plan, with_prediction
from ullage.search.ladder import Ladder
from ullage.search.menu import Actions
from ullage.search.outcomes import judge
from ullage.search.proposals import Rung
from ullage.search.runs.search import search
from ullage.search.sizes.sizes import FIRST, Sizes, from_line

SizedRunner = Callable[[Sequence[tuple[int, RunRequest]]], list[RunReport]]

# How many of the ladder's last rungs are tried for the largest size, and how many of the others.
_LEAN = 2
_BETWEEN = 3
# The ladder is measured at this multiple of the size that fits unchanged.
_BEYOND = 2
# The ladder is measured again at the size that the leanest plan reaches, if it is this much larger.
_FAR = 4
_ROUNDS = 3
# At most this many of the leanest plans run to measure their memory.
_LOOKS = 6
# What a plan takes that does not run.
_ENDLESS = 2**63


@dataclass(frozen=True, slots=True)
class Answer:
    """The largest size under one plan.

    Attributes:
        name: of the plan, for people.
        actions: of the plan; empty: the unchanged program.
        size: the largest that fits.
        seen: the run with this size.
        beyond: the next size, which does not fit; None: all sizes fit.
        why_not: why the next size does not fit.
        step_s: seconds of a step with this size: the likely ones of the clock, else by the cost
            model; 0: not known.
        plan: to be written to a file; None for the unchanged program.
        time: of a step with this size, by the clock; None: it was not timed.
    """

    name: str
    actions: Actions
    size: int
    seen: Annotated[Seen, Mark.FLAT]
    beyond: int | None
    why_not: Annotated[str, Mark.NULL]
    step_s: Annotated[float, Mark.NULL] = 0.0
    plan: Annotated[Plan | None, Mark.NO_KEY] = None
    time: Annotated[Timed | None, Only("step"), As("step_interval_s")] = None

    @figure
    def semantics(self) -> Semantics:
        """The change of the training's results."""
        return semantics_of(self.actions)

    @property
    def unit(self) -> Interval | None:
        """Seconds per unit of the size by the clock; None: it was not timed."""
        if self.time is None:
            return None
        return Interval(*(seconds / self.size for seconds in self.time.step))

    @figure
    def tokens_per_s(self) -> Annotated[float, Mark.NULL]:
        """Tokens a second by the clock; 0: not known."""
        return 0.0 if self.time is None else self.time.num_tokens / self.time.step.s

    @figure
    def unit_s(self) -> Annotated[float, Mark.NULL]:
        """Seconds per unit of the size, such as a sample of a batch."""
        return self.step_s / self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedReport:
    """The result of a search over sizes.

    Attributes:
        program: its command line, with {NAME} for the size.
        variable: that name.
        torch: its version.
        gpu: the device.
        budget_bytes: the memory of the device that a run may use.
        left_out: techniques and plans that were not used, and why.
        failure: why the program failed by itself; empty if it did not.
        warnings: of its first run.
        num_runs: how many runs the search made.
        wall_s: how long it took.
    """

    program: tuple[str, ...]
    variable: str
    torch: str
    gpu: Annotated[Gpu, Only("slug")]
    budget_bytes: int
    left_out: Mapping[str, str]
    failure: Annotated[str, Mark.NULL]
    warnings: tuple[str, ...]
    num_runs: int = 0
    wall_s: float = 0.0

    @figure
    def total_bytes(self) -> int:
        """The memory of the device."""
        return self.gpu.total_bytes


class SizedSearch:
    """The parts of searches over sizes: their runs, the device, and the measurements.

    Args:
        run: makes runs.
        gpu: the device.
        budget_bytes: the memory of the device that a run may use.
    """

    def __init__(self, run: SizedRunner, gpu: Gpu, budget_bytes: int) -> None:
        self._run = run
        self._gpu = gpu
        self._budget_bytes = budget_bytes
        self._measured: Measurements | None = None

    def _at(self, size: int) -> Runner:
        return lambda requests: self._run([(size, request) for request in requests])

    def _plan(self, actions: Actions) -> Plan | None:
        return self._measured.plan(actions) if self._measured is not None and actions else None

    def _to_write(self, actions: Actions, observation: Seen, step_s: float) -> Plan | None:
        plan = self._plan(actions)
        return with_prediction(plan, observation, step_s, self._gpu, self._budget_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestReport(SizedReport):
    """The result of a search for the largest size.

    Attributes:
        step: all sizes that were tried are multiples of it.
        as_it_is: the answer without a plan; None: no size fits.
        answers: the Pareto front of size and time, and the unchanged program; the largest size
            first.
    """

    SCHEMA: ClassVar[str] = "ullage.largest/1"

    step: Annotated[int, As("multiple_of")]
    as_it_is: Annotated[Answer | None, Only("size")]
    answers: tuple[Answer, ...]

    @figure
    def largest(self) -> Annotated[Mapping[str, Any], Mark.FLAT]:
        """The largest size, and the plan that it needs."""
        best = self.best
        if best is None:
            return {"largest": None, "plan": None}
        return {"largest": best.size, "plan": best.plan}

    @property
    def best(self) -> Answer | None:
        """The largest size, the fastest of several; None: nothing fits."""
        return self.answers[0] if self.answers else None

    @figure
    def fastest(self) -> Annotated[Answer | None, Only("name"), As("fastest_per_unit")]:
        """The answer with the least time per unit; None: not known."""
        timed = [answer for answer in self.answers if answer.step_s > 0]
        return min(timed, key=lambda answer: answer.unit_s, default=None)

    @figure
    def as_fast_per_unit(self) -> tuple[str, ...]:
        """The names of the plans that are about as fast."""
        return tuple(answer.name for answer in self.as_fast)

    @property
    def as_fast(self) -> tuple[Answer, ...]:
        """The other answers that are not surely slower per unit than the fastest."""
        fastest = self.fastest
        if fastest is None or fastest.unit is None:
            return ()
        return tuple(
            answer
            for answer in self.answers
            if answer is not fastest
            and answer.unit is not None
            and compare(answer.unit, fastest.unit).order is not Order.SLOWER
        )

    @figure
    def exit_code(self) -> ExitCode:
        """The exit code of the command line."""
        if self.failure:
            return ExitCode.PROGRAM_FAILED
        return ExitCode.FINE if self.answers else ExitCode.ANSWER_IS_NO


class LargestSearch(SizedSearch):
    """The search for the largest size of one program on one GPU.

    Args:
        run, gpu, budget_bytes: as for `SizedSearch`.
        step: only multiples of it are tried.
    """

    def __init__(self, run: SizedRunner, gpu: Gpu, budget_bytes: int, step: int = 1) -> None:
        super().__init__(run, gpu, budget_bytes)
        self._step = step
        self._first: RunReport | None = None

    def find(
        self, program: Sequence[str], variable: str, allowed: Semantics | None
    ) -> LargestReport:
        """The largest sizes: without a plan and, if `allowed` is given, under plans."""
        small, large = (self._step * size for size in FIRST)
        plain = self._climb((), self._begin((), small, large))
        first = self._first
        if first is None:
            raise RuntimeError("nothing was run")
        has_failed = first.verdict is Verdict.FAILED
        all_answers = [] if has_failed else [*self._answers((), plain)]
        # Where all sizes fit, no plan is needed.
        if allowed is not None and not has_failed and plain.beyond is not None:
            all_answers += self._planned(plain, allowed)
        answers = _front(self._timed(all_answers))
        known = self._measured
        return LargestReport(
            program=tuple(program),
            variable=variable,
            step=self._step,
            torch=first.torch,
            gpu=self._gpu,
            budget_bytes=self._budget_bytes,
            as_it_is=next((answer for answer in answers if not answer.actions), None),
            answers=tuple(answers),
            left_out={} if known is None else known.left_out,
            failure=first.reason if has_failed else "",
            warnings=first.warnings,
        )

    def _planned(self, plain: Sizes, allowed: Semantics) -> Iterator[Answer]:
        """The largest size under each plan that is worth a run.

        At small sizes optimizer states dominate the peak, at large ones activations do, so the
        leanest plans differ. Where plans reach much larger sizes, the ladder is measured there
        again.
        """
        size = _BEYOND * (plain.largest or self._step)
        for _ in range(_ROUNDS):
            known = Measurements(self._at(size))
            base = known.measure_program()
            if base is None:
                return
            self._measured = known
            known.measure_techniques(allowed, base)
            ladder = Ladder(known, base)
            leanest = self._leanest(ladder, size)
            if leanest is None:
                return
            more = [rung for rung in ladder.rungs if rung.reserved_bytes > leanest.reserved_bytes]
            plans = [(rung, actions) for rung in more if (actions := ladder.actions(rung))]
            plans.append((leanest, ladder.actions(leanest)))
            lean = self._begin(plans[-1][1], self._half(size), size)
            if lean.expected <= _FAR * size:
                break
            size = lean.expected
        yield from self._climbed(plans, lean, size)

    def _leanest(self, ladder: Ladder, size: int) -> Rung | None:
        """The leanest plan: runs the last rung and corrects the ladder, until the last rung is one
        that ran.
        """

        def propose(ran: tuple[Rung, ...]) -> Rung | None:
            rung = ladder.rungs[-1]
            is_new = ladder.actions(rung) and rung.place not in [each.place for each in ran]
            return rung if is_new and len(ran) < _LOOKS else None

        def attempt(rung: Rung) -> RunReport:
            (report,) = self._run([(size, RunRequest(self._plan(ladder.actions(rung))))])
            return report

        def judge(ran: tuple[Rung, ...], rung: Rung, report: RunReport) -> tuple[Rung, ...]:
            if report.verdict is not Verdict.FITS:
                ladder.leave_out(kind_of(ladder.actions(rung)))
                return (*ran, rung._replace(reserved_bytes=_ENDLESS))
            ladder.learn(rung, report)
            reserved = max(device.totals.peak_reserved_bytes for device in report.devices)
            return (*ran, rung._replace(reserved_bytes=reserved))

        ran = search(tuple[Rung, ...](), propose, attempt, judge)
        fitting = [rung for rung in ran if rung.reserved_bytes < _ENDLESS]
        return min(fitting, key=lambda rung: (rung.reserved_bytes, rung.time_s), default=None)

    def _climbed(
        self, plans: Sequence[tuple[Rung, Actions]], lean: Sizes, size: int
    ) -> Iterator[Answer]:
        """The largest sizes of the leanest plans, and of some others.

        Args:
            plans: of the ladder.
            lean: the sizes to start with for the last plan.
            size: that of the ladder's measurements.
        """
        *others, (_, leanest) = plans
        yield from self._answers(leanest, self._climb(leanest, lean))
        for _, actions in others[1 - _LEAN :]:
            near = Sizes(self._budget_bytes, step=self._step, first=lean.around)
            first = near.next()
            near.note(first, self._try(actions, first))
            if near.largest is not None:  # else it ends before the leanest plan, and is no faster
                yield from self._answers(actions, self._climb(actions, near))
        for actions in _between(plans):
            sizes = self._begin(actions, self._half(size), size)
            yield from self._answers(actions, self._climb(actions, sizes))

    def _half(self, size: int) -> int:
        return max(size // 2 // self._step, 1) * self._step

    def _begin(self, actions: Actions, small: int, large: int) -> Sizes:
        """A search that starts where the line through two runs with unlimited memory reaches the
        budget.
        """
        plan = self._plan(actions)
        reports = self._run([(size, RunRequest(plan)) for size in (small, large)])
        self._note_first(reports)
        if any(report.verdict is not Verdict.FITS or not report.devices for report in reports):
            return Sizes(self._budget_bytes, step=self._step)
        low, high = (max(device.peak_used_bytes for device in each.devices) for each in reports)
        return from_line(self._budget_bytes, self._step, (small, low), (large, high))

    def _climb(self, actions: Actions, sizes: Sizes) -> Sizes:
        """Tries sizes on the device until the largest is found."""
        return search(
            sizes, lambda now: now.next() or None, partial(self._try, actions), Sizes.note
        )

    def _try(self, actions: Actions, sizes: Sequence[int]) -> list[Seen]:
        plan = self._plan(actions)
        reports = self._run([(size, RunRequest(plan, self._gpu)) for size in sizes])
        self._note_first(reports)
        return [judge(report, self._budget_bytes) for report in reports]

    def _note_first(self, reports: Sequence[RunReport]) -> None:
        """Keeps the first report that did not fail, if any, to describe the program."""
        for report in reports:
            if self._first is None or self._first.verdict is Verdict.FAILED:
                self._first = report

    def _answers(self, actions: Actions, sizes: Sizes) -> Iterator[Answer]:
        if sizes.largest is None:
            return
        beyond = sizes.beyond
        blocks = () if self._measured is None else self._measured.blocks
        yield Answer(
            name_plan(actions, blocks),
            actions,
            sizes.largest,
            sizes.seen[sizes.largest],
            beyond,
            "" if beyond is None else sizes.seen[beyond].reason,
        )

    def _timed(self, answers: Sequence[Answer]) -> Iterator[Answer]:
        """Adds the seconds of a step, by a run with unlimited memory."""
        requests = [(answer.size, RunRequest(self._plan(answer.actions))) for answer in answers]
        reports = self._run(requests) if requests else []
        for answer, report in zip(answers, reports, strict=True):
            time = timed(report)
            step_s = 0.0 if time is None else time.step.s
            plan = self._to_write(answer.actions, answer.seen, step_s)
            yield replace(answer, step_s=step_s, plan=plan, time=time)


def _front(answers: Iterable[Answer]) -> list[Answer]:
    """The Pareto front of size and time, and the unchanged program; the largest size first."""
    front: list[Answer] = []
    for answer in sorted(answers, key=lambda answer: (-answer.size, answer.step_s)):
        if not answer.actions or all(answer.unit_s < other.unit_s for other in front):
            front.append(answer)
    return front


def _between(plans: Sequence[tuple[Rung, Actions]]) -> list[Actions]:
    """Some plans before the leanest, evenly spaced in memory."""
    others = plans[:-_LEAN]
    if not others:
        return []
    most, least = plans[0][0].reserved_bytes, plans[-1][0].reserved_bytes
    aims = [most - (most - least) * number // _BETWEEN for number in range(_BETWEEN)]
    nearest = [min(others, key=lambda pair: abs(pair[0].reserved_bytes - aim)) for aim in aims]
    return [*{rung.place: actions for rung, actions in nearest}.values()]
