"""The search among configurations of a launcher: the fastest under which the ranks of a job fit.

It starts no process and writes no file itself: a `Runner` does, and returns the report of each run.

    search = ShardedSearch(run, gpu, SHARDINGS)
    search.find(budget_bytes).best

One rank of each sharding runs with unlimited memory; a sharding that takes too much also runs with
activation checkpointing. Then the first and the last rank run on the device, for the fastest
sharding first, until one fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.errors import SpecError
from ullage.search.costs.blocks import Block, find_blocks
from ullage.search.costs.clocked import timed
from ullage.search.costs.measure import RunRequest, has_run
from ullage.search.costs.profile import kept_by_module
from ullage.search.findings import (
    AS_IT_IS,
    LATE,
    Candidate,
    FitReport,
    Seen,
    failed,
    front_of,
    with_prediction,
)
from ullage.search.launchers.shardings import Engine, OnHost, Sharding
from ullage.search.outcomes import judge, say_more, too_much
from ullage.search.runs.search import search

# The report of each run, or why it could not start.
Runner = Callable[[Sequence[RunRequest]], list[RunReport | str]]
Ends = tuple[Seen, Seen]  # of the first rank, and of the last


@dataclass(frozen=True, slots=True)
class _Measured:
    """A sharding that ran with unlimited memory, under a plan if that does what its file cannot."""

    sharding: Sharding | None
    plan: Plan | None
    candidate: Candidate
    made_for: MadeFor

    @property
    def order(self) -> tuple[bool, float]:
        """The order of trials. Offloading comes last: the memory of DeepSpeed's host optimizer is
        not known.
        """
        is_on_host = self.sharding is not None and self.sharding.on_host is not OnHost.NOTHING
        return is_on_host, self.candidate.step_s


class ShardedSearch:
    """The search among the shardings of one program on one GPU.

    Args:
        run: makes runs, of one rank each.
        write: makes the text of the launcher's file; SpecError where it cannot express a sharding.
        gpu: each rank's device.
        shardings: those to try.
        is_late: whether this share of the time limit has passed.
    """

    def __init__(
        self,
        run: Runner,
        write: Callable[[Sharding, Sequence[str]], str],
        gpu: Gpu,
        shardings: Sequence[Sharding],
        is_late: Callable[[float], bool] = lambda _share: False,
    ) -> None:
        self._run = run
        self._write = write
        self._gpu = gpu
        self._shardings = shardings
        self._is_late = is_late
        self._left_out: dict[str, str] = {}
        self._blocks: tuple[Block, ...] = ()

    @property
    def _kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(block.kind for block in self._blocks))

    def find(self, budget_bytes: int, *, is_for_memory: bool = False) -> FitReport:
        """The fastest sharding that fits, or that which takes the least memory."""
        # 1. The program as it is: its blocks, and what a rank of it takes.
        (first,) = self._runs([RunRequest(describes=True)])
        outcome = first.program.plan
        if not has_run(first) or outcome is None or outcome.found is None:
            trains_none = "it trains no model that could be shared among ranks"
            return failed(first, self._gpu, budget_bytes, trains_none)
        kept_bytes = kept_by_module(first.processes[0].record)
        self._blocks = find_blocks(outcome.found.modules, kept_bytes)
        base = self._read(RunRequest(), first, outcome.found)
        # 2. Each sharding; with checkpointing too where it takes much.
        enough_bytes = 0 if is_for_memory else budget_bytes
        plain = self._measure([(sharding, None) for sharding in self._shardings])
        large = [each for each in plain if each.candidate.used_bytes > enough_bytes]
        measured = [base, *plain, *self._measure(list(map(self._checkpointed, large)))]
        # 3. On the device, the best first.
        measured.sort(key=lambda each: each.order)
        if is_for_memory:
            measured.sort(key=lambda each: each.candidate.used_bytes)
        return self._report(first, base, measured, budget_bytes)

    def _report(
        self, first: RunReport, base: _Measured, measured: Sequence[_Measured], budget_bytes: int
    ) -> FitReport:
        """The report of all measured shardings, which are tried on the device in this order."""
        ends = self._try(measured, budget_bytes)
        # One without retries of the allocator if there is any.
        fitting = [place for place, each in ends.items() if all(end.fits for end in each)]
        smooth = [place for place in fitting if not _num_retries(ends[place])]
        place = next(iter([*smooth, *fitting]), None)
        best = None if place is None else measured[place]
        candidates = [
            self._candidate(each, ends.get(number), best, budget_bytes)
            for number, each in enumerate(measured)
        ]
        chosen = None if place is None else candidates[place]
        return replace(
            failed(first, self._gpu, budget_bytes, ""),
            blocks=self._blocks,
            as_it_is=candidates[measured.index(base)],
            best=chosen,
            plan=None
            if best is None or chosen is None
            else with_prediction(best.plan, chosen.seen, chosen.step_s, self._gpu, budget_bytes),
            candidates=tuple(sorted(candidates, key=lambda candidate: candidate.step_s)),
            front=tuple(
                (each.step_s, each.used_bytes)
                for each in front_of([each.candidate for each in measured])
            ),
            left_out=self._left_out,
            failure="",
            ended=LATE if self._is_late(1.0) else "",
            exit_code=ExitCode.ANSWER_IS_NO if best is None else ExitCode.FINE,
        )

    def _runs(self, requests: Sequence[RunRequest]) -> list[RunReport]:
        return [report for report in self._run(requests) if not isinstance(report, str)]

    def _measure(self, tried: Sequence[tuple[Sharding, Plan | None]]) -> list[_Measured]:
        """Runs the shardings that the launcher's file can express."""
        requests = []
        for sharding, plan in tried:
            try:
                self._text(sharding, plan)
            except SpecError as error:
                self._left_out[sharding.name] = str(error)
                continue
            requests.append(RunRequest(plan, describes=True, sharding=sharding, kinds=self._kinds))
        measured = []
        for request, report in zip(requests, self._run(requests) if requests else [], strict=True):
            outcome = None if isinstance(report, str) else report.program.plan
            if isinstance(report, str) or not has_run(report):
                self._left_out[_name(request)] = (
                    report if isinstance(report, str) else report.reason
                )
            elif outcome is None or outcome.found is None:
                self._left_out[_name(request)] = report.reason
            else:
                measured.append(self._read(request, report, outcome.found))
        return measured

    def _read(self, request: RunRequest, report: RunReport, made_for: MadeFor) -> _Measured:
        sharding, plan, device = request.sharding, request.plan, report.devices[0]
        # Ranks that share a batch need more steps for as many batches.
        num_steps = 1 if sharding is None else sharding.num_context_ranks
        time = timed(report)
        time = None if time is None else time.times(num_steps)
        candidate = Candidate(
            _name(request),
            () if plan is None else plan.actions,
            0.0 if time is None else time.step.s,
            device.totals.peak_allocated_bytes,
            device.peak_used_bytes,
            configuration="" if sharding is None else self._text(sharding, plan),
            time=time,
        )
        return _Measured(sharding, plan, candidate, made_for)

    def _checkpointed(self, measured: _Measured) -> tuple[Sharding, Plan | None]:
        """The sharding with activation checkpointing: by the launcher's file, else by a plan."""
        if measured.sharding is None:
            raise RuntimeError("only a sharding can be varied")
        sharding = measured.sharding.checkpointed
        if sharding.engine is Engine.FSDP2:
            return sharding, None
        paths = tuple(block.path for block in self._blocks)
        kinds = {path: measured.made_for.modules[path] for path in paths}
        action = Action("checkpoint", paths)
        return sharding, Plan((action,), replace(measured.made_for, modules=kinds))

    def _text(self, sharding: Sharding, plan: Plan | None) -> str:
        """The launcher's file; it leaves out checkpointing where a plan does it."""
        plain = sharding if plan is None else replace(sharding, is_checkpointed=False)
        return self._write(plain, self._kinds)

    def _try(self, measured: Sequence[_Measured], budget_bytes: int) -> Mapping[int, Ends]:
        """Runs on the device until one fits without retries of the allocator: first those that are
        expected to fit, then those that may with retries.
        """
        least = self._gpu.context_low_bytes
        places = [
            place
            for place, each in enumerate(measured)
            if each.candidate.peak_bytes + least <= budget_bytes
        ]
        places.sort(key=lambda place: measured[place].candidate.used_bytes > budget_bytes)

        def propose(ends: Mapping[int, Ends]) -> int | None:
            is_found = any(
                all(end.fits for end in each) and not _num_retries(each) for each in ends.values()
            )
            is_over = is_found or (ends and self._is_late(1.0))
            return next((n for n in places if n not in ends and not is_over), None)

        def attempt(place: int) -> Ends:
            trial = RunRequest(
                measured[place].plan,
                self._gpu,
                sharding=measured[place].sharding,
                kinds=self._kinds,
            )
            requests = [trial._replace(is_last=is_last) for is_last in (False, True)]
            first, last = (judge(report, budget_bytes) for report in self._runs(requests))
            return first, last

        return search({}, propose, attempt, lambda ends, place, each: {**ends, place: each})

    def _candidate(
        self, measured: _Measured, ends: Ends | None, best: _Measured | None, budget_bytes: int
    ) -> Candidate:
        candidate = measured.candidate
        if ends is not None:
            worse = max(ends, key=lambda end: (not end.fits, end.used_bytes))
            candidate = replace(candidate, used_bytes=worse.used_bytes, seen=worse)
        if measured is best:
            return candidate
        return replace(candidate, why=_why(measured, candidate.seen, best, budget_bytes))


def _name(request: RunRequest) -> str:
    return AS_IT_IS if request.sharding is None else request.sharding.name


def _num_retries(ends: Ends) -> int:
    return sum(end.num_retries for end in ends)


def _why(
    measured: _Measured, observation: Seen | None, best: _Measured | None, budget_bytes: int
) -> str:
    if observation is not None and not observation.fits:
        return observation.reason
    if observation is not None and observation.num_retries:
        return f"fits, with {observation.num_retries} retries of the allocator"
    if measured.candidate.used_bytes > budget_bytes:
        return too_much(measured.candidate.used_bytes, budget_bytes)
    if best is None:
        return ""
    untried = "not tried: the host's part comes last" if measured.order[0] else "no faster"
    return say_more(measured.candidate.step_s, best.candidate.step_s) or untried
