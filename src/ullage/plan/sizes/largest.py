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

from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.gpus.catalog import Gpu
from ullage.plan.costs.measure import Measurements, Runner, RunRequest
from ullage.plan.costs.roofline import step_seconds
from ullage.plan.findings import Seen, foreseen, key_of, name_plan
from ullage.plan.judging import judge
from ullage.plan.ladder import Ladder
from ullage.plan.menu import Actions
from ullage.plan.sizes.sizes import FIRST, Sizes, from_line
from ullage.plan.trying import Rung
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Semantics

SizedRunner = Callable[[Sequence[tuple[int, RunRequest]]], list[RunReport]]

# Of the ladder's rungs: how many of the last are tried for the largest size, and how many between.
_LEAN = 2
_BETWEEN = 3
# The ladder is measured at so many times the size that fits as it is.
_BEYOND = 2
# Where the leanest plan is expected to get so many times as far, the ladder is measured there anew.
_FAR = 4
_ROUNDS = 3
# So many of the leanest plans are run to see what they take.
_LOOKS = 6


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
        timed = [answer for answer in self.answers if answer.step_s > 0]
        return min(timed, key=lambda answer: answer.unit_s, default=None)

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
        small, large = (self._step * size for size in FIRST)
        plain = self._climb((), self._begin((), small, large))
        first = self._first
        if first is None:
            raise RuntimeError("nothing was run")
        has_failed = first.verdict is Verdict.FAILED
        all_answers = [] if has_failed else [*self._answers((), plain)]
        # A size without end needs no plan.
        if allowed is not None and not has_failed and plain.beyond is not None:
            all_answers += self._planned(plain, allowed)
        answers = _front(self._timed(all_answers))
        known = self._known
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
        """The plan that takes the least: that which is expected to is run, and the ladder learns
        what was seen, until it is one that was run.
        """
        rungs: dict[tuple[int, int], Rung] = {}
        for _ in range(_LOOKS):
            rung = ladder.rungs[-1]
            actions = ladder.actions(rung)
            if rung.place in rungs or not actions:
                break
            (report,) = self._run([(size, RunRequest(self._plan(actions)))])
            if report.verdict is Verdict.FITS:
                reserved = max(device.totals.peak_reserved_bytes for device in report.devices)
                rungs[rung.place] = rung._replace(reserved_bytes=reserved)
                ladder.learn(rung, report)
            else:
                ladder.leave_out(key_of([replace(action, modules=()) for action in actions]))
        return min(
            rungs.values(), key=lambda rung: (rung.reserved_bytes, rung.time_s), default=None
        )

    def _climbed(
        self, plans: Sequence[tuple[Rung, Actions]], lean: Sizes, size: int
    ) -> Iterator[Answer]:
        """The largest sizes of the leanest plans, and of some between.

        Args:
            plans: of the ladder.
            lean: where the search with the last of them begins.
            size: that the ladder was measured with.
        """
        *others, (_, leanest) = plans
        yield from self._answers(leanest, self._climb(leanest, lean))
        for _, actions in others[1 - _LEAN :]:
            near = Sizes(self._budget_bytes, step=self._step, first=lean.around)
            self._climb_once(actions, near)
            if near.largest is not None:  # else it ends before the leanest, and is no faster
                yield from self._answers(actions, self._climb(actions, near))
        for actions in _between(plans):
            sizes = self._begin(actions, self._half(size), size)
            yield from self._answers(actions, self._climb(actions, sizes))

    def _at(self, size: int) -> Runner:
        return lambda requests: self._run([(size, request) for request in requests])

    def _half(self, size: int) -> int:
        return max(size // 2 // self._step, 1) * self._step

    def _begin(self, actions: Actions, small: int, large: int) -> Sizes:
        """A search that begins where the line through two runs with memory without end reaches the
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
        while self._climb_once(actions, sizes):
            pass
        return sizes

    def _climb_once(self, actions: Actions, sizes: Sizes) -> bool:
        """Tries the next sizes; whether there were any."""
        next_sizes, plan = sizes.next(), self._plan(actions)
        reports = self._run([(size, RunRequest(plan, self._gpu)) for size in next_sizes])
        for size, report in zip(next_sizes, reports, strict=True):
            sizes.note(size, judge(report, self._budget_bytes))
        self._note_first(reports)
        return bool(next_sizes)

    def _note_first(self, reports: Sequence[RunReport]) -> None:
        """Keeps the first that says what the program is like: one that did not fail, if any."""
        for report in reports:
            if self._first is None or self._first.verdict is Verdict.FAILED:
                self._first = report

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
        requests = [
            (answer.size, RunRequest(self._plan(answer.actions), has_work=True))
            for answer in answers
        ]
        for answer, report in zip(answers, self._run(requests) if requests else (), strict=True):
            step_s = 0.0
            if report.verdict is Verdict.FITS and report.processes:
                step_s = step_seconds(report.processes[0].record, blocks, self._gpu).step
            yield replace(answer, step_s=step_s, plan=self._to_write(answer, step_s))

    def _to_write(self, answer: Answer, step_s: float) -> Plan | None:
        plan = self._plan(answer.actions)
        if plan is None:
            return None
        prediction = foreseen(answer.seen, step_s, self._gpu, self._budget_bytes)
        return replace(plan, foreseen=prediction)


def _front(answers: Iterable[Answer]) -> list[Answer]:
    """Those that no other beats in size and time, and the program as it is; the largest first."""
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
