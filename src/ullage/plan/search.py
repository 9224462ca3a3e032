"""The search: measures a program once, and finds for any budget the fastest plan that fits it.

It starts no process itself: a `Runner` does, and gives back what each run said.

    search = Search(run, gpu, Semantics.SAME)
    search.fastest(budget_bytes).best, search.leanest(budget_bytes).best
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict, gpus_that_fit
from ullage.gpus.catalog import Gpu
from ullage.plan.blocks import Block
from ullage.plan.bracket import Bracket
from ullage.plan.findings import AS_IT_IS, Candidate, FitReport, Key, Seen, key_of, name_plan
from ullage.plan.ladder import Ladder, Rung
from ullage.plan.measure import Measured, Measurements, Runner, Wanted
from ullage.plan.menu import Actions
from ullage.techniques.plan import Foreseen, Plan
from ullage.techniques.technique import Semantics
from ullage.units import format_bytes

_AT_ONCE = 2
# A search does not go on for ever where what is seen is far from what was expected.
_MAX_ROUNDS = 24
_MOST_GPUS = 3


class Search:
    """What is known of one program on one GPU; every run is made once.

    Args:
        run: makes runs.
        gpu: the device.
        allowed: what techniques may change.
    """

    def __init__(self, run: Runner, gpu: Gpu, allowed: Semantics) -> None:
        self._run = run
        self._gpu = gpu
        self._known = Measurements(run, gpu)
        self._reports: dict[Key, RunReport] = {}
        self._base = self._known.measure_program()
        self._ladder: Ladder | None = None
        if self._base is not None:
            self._known.measure_techniques(allowed, self._base)
            self._ladder = Ladder(self._known, self._base)

    def fastest(self, budget_bytes: int) -> FitReport:
        """The first rung of the ladder that is seen to fit."""
        if self._ladder is None or self._base is None:
            return self._failed(budget_bytes)
        ladder, guess = self._ladder, self._guess(self._ladder, self._base, budget_bytes)
        # Where the allocator has to give back its cache to go on, steps take longer than is told.
        found = self._first(ladder, guess, budget_bytes, most_retries=0)
        if found is None:
            found = self._first(ladder, guess, budget_bytes, most_retries=None)
        return self._told(ladder, self._base, found, budget_bytes)

    def _first(
        self, ladder: Ladder, guess: int, budget_bytes: int, *, most_retries: int | None
    ) -> int | None:
        """The first rung that is seen to fit, with so many retries of the allocator at most."""
        bracket = Bracket(len(ladder.rungs), guess)
        for _ in range(_MAX_ROUNDS):
            places = bracket.next(_AT_ONCE)
            if not places:
                break
            seen = self._see([ladder.actions(ladder.rungs[one]) for one in places], budget_bytes)
            for place, one in zip(places, seen, strict=True):
                is_smooth = most_retries is None or one.num_retries <= most_retries
                bracket.note(place, fits=one.fits and is_smooth)
        return bracket.found

    def leanest(self, budget_bytes: int) -> FitReport:
        """That of the last rungs which is seen to take the least memory."""
        if self._ladder is None or self._base is None:
            return self._failed(budget_bytes)
        rungs = self._ladder.rungs
        places = range(max(0, len(rungs) - 2 * _AT_ONCE), len(rungs))
        seen = self._see([self._ladder.actions(rungs[place]) for place in places], budget_bytes)
        used = {place: one.used_bytes for place, one in zip(places, seen, strict=True) if one.fits}
        least = min(used, key=used.__getitem__, default=None)
        return self._told(self._ladder, self._base, least, budget_bytes)

    def smallest_gpu(self, catalogued: Sequence[Gpu]) -> str | None:
        """The smallest GPU on which the plan that takes the least memory is seen to fit; None: it
        was not seen to fit any that was tried.

        Those too small by what it takes on this device are not tried, the next few are: on another
        generation other kernels run.
        """
        leanest = self.leanest(self._gpu.total_bytes).best
        if leanest is None:
            return None
        report = self._reports[key_of(leanest.actions)]
        totals = report.devices[0].totals
        slugs = gpus_that_fit(catalogued, totals.peak_reserved_bytes, totals.non_torch_bytes)
        by_slug = {gpu.slug: gpu for gpu in catalogued}
        plan = self._known.plan(leanest.actions) if leanest.actions else None
        for slug in slugs[:_MOST_GPUS]:
            (seen,) = self._run([Wanted(plan, by_slug[slug])])
            if seen.verdict is Verdict.FITS:
                return slug
        return None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The modules that are treated one by one."""
        return self._known.blocks

    @property
    def treatments(self) -> tuple[Actions, ...]:
        """What can be done with blocks, each as it was done to all of them."""
        return tuple(one.actions for one in self._known.treatments)

    def look_at(self, plans: Sequence[Actions]) -> list[Candidate]:
        """Plans of one treatment on some blocks, each run on the device."""
        self._see(plans, self._gpu.total_bytes)
        return [self._one_kind(actions) for actions in plans]

    def _guess(self, ladder: Ladder, base: Measured, budget_bytes: int) -> int:
        """Where the first that fits is expected."""
        room = budget_bytes - _outside_bytes(base)
        fits = [place for place, one in enumerate(ladder.rungs) if one.reserved_bytes <= room]
        return fits[0] if fits else len(ladder.rungs) - 1

    def _see(self, plans: Sequence[Actions], budget_bytes: int) -> list[Seen]:
        """What plans take on the device."""
        by_key = {key_of(one): one for one in plans}
        new = [one for key, one in by_key.items() if key not in self._reports]
        wanted = [Wanted(self._known.plan(one) if one else None, self._gpu) for one in new]
        for one, report in zip(new, self._run(wanted) if wanted else [], strict=True):
            self._reports[key_of(one)] = report
        return [judge(self._reports[key_of(one)], budget_bytes) for one in plans]

    def _told(
        self, ladder: Ladder, base: Measured, place: int | None, budget_bytes: int
    ) -> FitReport:
        known = self._known
        rung = None if place is None else ladder.rungs[place]
        measured = [
            self._alone(one, budget_bytes) for one in (base, *known.treatments, *known.moves)
        ]
        tried = [self._candidate(ladder, one, base, budget_bytes) for one in ladder.rungs]
        best = None if place is None else tried[place]
        told = {key_of(one.actions): one for one in measured}
        told |= {key_of(one.actions): one for one in tried if one.seen is not None}
        listed = sorted(told.values(), key=lambda one: (one.step_s, one.name))
        return replace(
            self._failed(budget_bytes),
            as_it_is=measured[0],
            best=best,
            plan=self._plan(best, budget_bytes),
            candidates=tuple(_with_reason(one, best, budget_bytes) for one in listed),
            front=tuple(
                (ladder.step_s + one.time_s, one.reserved_bytes + _outside_bytes(base))
                for one in ladder.rungs
            ),
            bound_s=0.0 if rung is None else ladder.bound_s(rung),
            failure="",
            exit_code=ExitCode.ANSWER_IS_NO if best is None else ExitCode.FINE,
        )

    def _failed(self, budget_bytes: int) -> FitReport:
        """The report of a program that failed by itself."""
        known, first = self._known, self._known.first
        failure = first.reason
        if first.verdict is Verdict.FITS:
            failure = "it trains no model that a plan could be made for"
        return FitReport(
            program=first.program.argv,
            torch=first.torch,
            gpu=self._gpu,
            budget_bytes=budget_bytes,
            blocks=known.blocks,
            as_it_is=Candidate(AS_IT_IS, (), 0.0, 0, 0),
            best=None,
            plan=None,
            candidates=(),
            front=(),
            bound_s=0.0,
            left_out=known.left_out,
            smallest_gpu=None,
            failure=failure,
            warnings=first.warnings,
            num_runs=0,
            wall_s=0.0,
            exit_code=first.exit_code or ExitCode.PROGRAM_FAILED,
        )

    def _candidate(
        self, ladder: Ladder, rung: Rung, base: Measured, budget_bytes: int
    ) -> Candidate:
        actions = ladder.actions(rung)
        seen = self._seen(actions, budget_bytes)
        return Candidate(
            name_plan(actions, self._known.blocks),
            actions,
            ladder.step_s + rung.time_s,
            rung.peak_bytes,
            rung.reserved_bytes + _outside_bytes(base) if seen is None else seen.used_bytes,
            seen,
        )

    def _alone(self, one: Measured, budget_bytes: int) -> Candidate:
        """A technique by itself on all blocks, as it was measured."""
        seen = self._seen(one.actions, budget_bytes)
        return Candidate(
            name_plan(one.actions, self._known.blocks),
            one.actions,
            one.seconds.step,
            one.profile.peak_bytes,
            one.device.peak_used_bytes if seen is None else seen.used_bytes,
            seen,
        )

    def _one_kind(self, actions: Actions) -> Candidate:
        """A treatment on some blocks."""
        base, seen = self._base, self._seen(actions, self._gpu.total_bytes)
        kinds = {_names(one.actions): one for one in self._known.treatments}
        treated = kinds[_names(actions)]
        if base is None or seen is None:
            raise RuntimeError("the plan has not been run")
        chosen = [block.path in actions[0].modules for block in self._known.blocks]
        more = (treated.seconds.blocks - base.seconds.blocks)[chosen].sum()
        name = name_plan(actions, self._known.blocks)
        step_s = base.seconds.step + float(more)
        return Candidate(name, actions, step_s, seen.allocated_bytes, seen.used_bytes, seen)

    def _seen(self, actions: Actions, budget_bytes: int) -> Seen | None:
        report = self._reports.get(key_of(actions))
        return None if report is None else judge(report, budget_bytes)

    def _plan(self, best: Candidate | None, budget_bytes: int) -> Plan | None:
        if best is None or not best.actions or best.seen is None:
            return None
        foreseen = Foreseen(
            gpu=self._gpu.slug,
            budget_bytes=budget_bytes,
            peak_used_bytes=best.seen.used_bytes,
            peak_allocated_bytes=best.seen.allocated_bytes,
            step_s=best.step_s,
            host_bytes=best.seen.host_bytes,
        )
        return replace(self._known.plan(best.actions), foreseen=foreseen)


def judge(report: RunReport, budget_bytes: int) -> Seen:
    """Whether a run fits a budget."""
    used = max((one.peak_used_bytes for one in report.devices), default=0)
    allocated = max((one.totals.peak_allocated_bytes for one in report.devices), default=0)
    fits, reason = report.verdict is Verdict.FITS, report.reason
    if fits and used > budget_bytes:
        fits, reason = False, _too_much(used, budget_bytes)
    return Seen(
        fits,
        "" if fits else reason,
        used,
        allocated,
        max((one.totals.num_alloc_retries for one in report.devices), default=0),
        report.host.pinned_peak_bytes,
    )


def _names(actions: Actions) -> Key:
    return key_of([replace(one, modules=()) for one in actions])


def _outside_bytes(base: Measured) -> int:
    """What is used of the device beside what the allocator holds."""
    return base.device.peak_used_bytes - base.device.totals.peak_reserved_bytes


def _too_much(used_bytes: int, budget_bytes: int) -> str:
    return f"{format_bytes(used_bytes - budget_bytes)} too much"


def _with_reason(one: Candidate, best: Candidate | None, budget_bytes: int) -> Candidate:
    """A candidate with why it is not the one chosen."""
    if best is not None and key_of(one.actions) == key_of(best.actions):
        return one
    if one.seen is not None and not one.seen.fits:
        return replace(one, why=one.seen.reason)
    if one.used_bytes > budget_bytes:
        return replace(one, why=_too_much(one.used_bytes, budget_bytes))
    if best is not None and one.step_s > best.step_s:
        return replace(one, why=f"{100 * (one.step_s / best.step_s - 1):.1f} % slower")
    return replace(one, why="takes more memory" if one.seen is not None else "not tried")
