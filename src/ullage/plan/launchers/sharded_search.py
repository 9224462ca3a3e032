"""The search among configurations of a launcher: the fastest under which the ranks of a job fit.

It starts no process and writes no file itself: a `Runner` does, and returns the report of each run.

    search = ShardedSearch(run, gpu, SHARDINGS)
    search.fastest(budget_bytes).best

One rank of each sharding runs with unlimited memory; a sharding that takes too much also runs with
activation checkpointing. Then the first and the last rank run on the device, for the fastest
sharding first, until one fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ullage.errors import SpecError
from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.gpus.catalog import Gpu
from ullage.plan.costs.blocks import Block, find_blocks
from ullage.plan.costs.clocked import Timed, timed
from ullage.plan.costs.profile import kept_by_module
from ullage.plan.findings import AS_IT_IS, Candidate, FitReport, Seen, failed, foreseen
from ullage.plan.judging import judge, say_more
from ullage.plan.launchers.shardings import Engine, OnHost, Sharding
from ullage.techniques.made_for import MadeFor
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Action
from ullage.units import format_bytes


class RunRequest(NamedTuple):
    """A run of one rank.

    Attributes:
        sharding: how the ranks share the training; None: as the program has it.
        kinds: the classes of the blocks.
        plan: techniques that are applied too.
        gpu: the device; None: unlimited memory.
        is_last: the last rank, rather than the first.
        describes: whether it describes the model.
    """

    sharding: Sharding | None = None
    kinds: tuple[str, ...] = ()
    plan: Plan | None = None
    gpu: Gpu | None = None
    is_last: bool = False
    describes: bool = False


# The report of each run, or why it could not start.
Runner = Callable[[Sequence[RunRequest]], list[RunReport | str]]
Ends = tuple[Seen, Seen]  # of the first rank, and of the last


@dataclass(frozen=True, slots=True)
class _Measured:
    """A sharding that ran: its plan, its time and memory, and its program."""

    sharding: Sharding | None
    plan: Plan | None
    step_s: float
    used_bytes: int
    peak_bytes: int
    made_for: MadeFor
    time: Timed | None = None

    @property
    def order(self) -> tuple[bool, float]:
        """The order of trials. Offloading comes last: the memory of DeepSpeed's host optimizer is
        not known.
        """
        is_on_host = self.sharding is not None and self.sharding.on_host is not OnHost.NOTHING
        return is_on_host, self.step_s


class ShardedSearch:
    """The search among the shardings of one program on one GPU.

    Args:
        run: makes runs, of one rank each.
        write: makes the text of the launcher's file; SpecError where it cannot express a sharding.
        gpu: each rank's device.
        shardings: those to try.
    """

    def __init__(
        self,
        run: Runner,
        write: Callable[[Sharding, Sequence[str]], str],
        gpu: Gpu,
        shardings: Sequence[Sharding],
    ) -> None:
        self._run = run
        self._write = write
        self._gpu = gpu
        self._shardings = shardings
        self._left_out: dict[str, str] = {}
        self._blocks: tuple[Block, ...] = ()

    @property
    def _kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(block.kind for block in self._blocks))

    def fastest(self, budget_bytes: int) -> FitReport:
        """The fastest sharding that fits."""
        first, base = self._measure_program()
        if base is None:
            return self._failed(first, budget_bytes)
        measured = self._measure_all(base, budget_bytes)
        measured.sort(key=lambda candidate: candidate.order)
        return self._told(first, base, measured, budget_bytes)

    def leanest(self, budget_bytes: int) -> FitReport:
        """The sharding that takes the least memory, if it fits."""
        first, base = self._measure_program()
        if base is None:
            return self._failed(first, budget_bytes)
        measured = self._measure_all(base, 0)
        measured.sort(key=lambda candidate: candidate.used_bytes)
        return self._told(first, base, measured, budget_bytes)

    def _measure_all(self, base: _Measured, enough_bytes: int) -> list[_Measured]:
        """Every sharding; with checkpointing too where it takes more than `enough_bytes`."""
        plain = self._measure([(sharding, None) for sharding in self._shardings])
        large = [sharding for sharding in plain if sharding.used_bytes > enough_bytes]
        return [base, *plain, *self._measure([self._checkpointed(sharding) for sharding in large])]

    def _told(
        self, first: RunReport, base: _Measured, measured: Sequence[_Measured], budget_bytes: int
    ) -> FitReport:
        """The report of all measured shardings, which are tried on the device in this order."""
        ends = self._try(measured, budget_bytes)
        place = _choose(ends)
        best = None if place is None else measured[place]
        candidates = [
            self._candidate(candidate, ends.get(number), best, budget_bytes)
            for number, candidate in enumerate(measured)
        ]
        chosen = None if place is None else candidates[place]
        return FitReport(
            program=first.program.argv,
            torch=first.torch,
            gpu=self._gpu,
            budget_bytes=budget_bytes,
            blocks=self._blocks,
            as_it_is=candidates[measured.index(base)],
            best=chosen,
            plan=self._plan(best, chosen, budget_bytes),
            candidates=tuple(sorted(candidates, key=lambda candidate: candidate.step_s)),
            front=tuple(_front(measured)),
            bound_s=0.0,
            left_out=self._left_out,
            smallest=None,
            failure="",
            warnings=first.warnings,
            num_runs=0,
            wall_s=0.0,
            exit_code=ExitCode.ANSWER_IS_NO if best is None else ExitCode.FINE,
        )

    def _runs(self, requests: Sequence[RunRequest]) -> list[RunReport]:
        """Runs of programs that started before."""
        return [report for report in self._run(requests) if not isinstance(report, str)]

    def _measure_program(self) -> tuple[RunReport, _Measured | None]:
        (report,) = self._runs([RunRequest(describes=True)])
        if not _ran(report):
            return report, None
        made_for = report.program.plan.found if report.program.plan is not None else None
        if made_for is None:
            return report, None
        record = report.processes[0].record
        self._blocks = find_blocks(made_for.modules, kept_by_module(record))
        return report, self._read(None, None, report, made_for)

    def _measure(self, tried: Sequence[tuple[Sharding, Plan | None]]) -> list[_Measured]:
        """Runs the shardings that the launcher's file can express."""
        requests = []
        for sharding, plan in tried:
            try:
                self._text(sharding, plan)
            except SpecError as error:
                self._left_out[sharding.name] = str(error)
                continue
            requests.append(RunRequest(sharding, self._kinds, plan, describes=True))
        measured = []
        for request, report in zip(requests, self._run(requests) if requests else [], strict=True):
            if isinstance(report, str):
                self._left_out[_name(request)] = report
                continue
            outcome = report.program.plan
            if _ran(report) and outcome is not None and outcome.found is not None:
                measured.append(self._read(request.sharding, request.plan, report, outcome.found))
            else:
                self._left_out[_name(request)] = report.reason
        return measured

    def _read(
        self, sharding: Sharding | None, plan: Plan | None, report: RunReport, made_for: MadeFor
    ) -> _Measured:
        device = report.devices[0]
        # Ranks that share a batch need more steps for as many batches.
        num_steps = 1 if sharding is None else sharding.num_context_ranks
        time = timed(report)
        time = None if time is None else time.times(num_steps)
        return _Measured(
            sharding,
            plan,
            0.0 if time is None else time.step.s,
            device.peak_used_bytes,
            device.totals.peak_allocated_bytes,
            made_for,
            time,
        )

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

    def _try(self, measured: Sequence[_Measured], budget_bytes: int) -> dict[int, Ends]:
        """Runs on the device until one fits without retries of the allocator: first those that are
        expected to fit, then those that may with retries.
        """
        ends_by_place: dict[int, Ends] = {}
        least = self._gpu.context_low_bytes
        may_fit = [
            n
            for n, candidate in enumerate(measured)
            if candidate.peak_bytes + least <= budget_bytes
        ]
        for place in sorted(may_fit, key=lambda n: measured[n].used_bytes > budget_bytes):
            trial = measured[place]
            ends = [
                RunRequest(trial.sharding, self._kinds, trial.plan, self._gpu, is_last=is_last)
                for is_last in (False, True)
            ]
            first, last = (judge(report, budget_bytes) for report in self._runs(ends))
            ends_by_place[place] = first, last
            if first.fits and last.fits and not first.num_retries + last.num_retries:
                break
        return ends_by_place

    def _candidate(
        self, measured: _Measured, ends: Ends | None, best: _Measured | None, budget_bytes: int
    ) -> Candidate:
        worse = None if ends is None else max(ends, key=lambda end: (not end.fits, end.used_bytes))
        used = measured.used_bytes if worse is None else worse.used_bytes
        why = ""
        if measured is not best:
            why = _why(measured, worse, best, budget_bytes)
        return Candidate(
            AS_IT_IS if measured.sharding is None else measured.sharding.name,
            () if measured.plan is None else measured.plan.actions,
            measured.step_s,
            measured.peak_bytes,
            used,
            worse,
            why,
            configuration=""
            if measured.sharding is None
            else self._text(measured.sharding, measured.plan),
            time=measured.time,
        )

    def _plan(
        self, best: _Measured | None, chosen: Candidate | None, budget_bytes: int
    ) -> Plan | None:
        if best is None or best.plan is None or chosen is None or chosen.seen is None:
            return None
        prediction = foreseen(chosen.seen, chosen.step_s, self._gpu, budget_bytes)
        return replace(best.plan, foreseen=prediction)

    def _failed(self, first: RunReport, budget_bytes: int) -> FitReport:
        """The report of a program that failed by itself."""
        trains_none = "it trains no model that could be shared among ranks"
        report = failed(first, self._gpu, budget_bytes, trains_none)
        return replace(report, left_out=self._left_out)


def _name(request: RunRequest) -> str:
    return AS_IT_IS if request.sharding is None else request.sharding.name


def _choose(ends_by_place: dict[int, Ends]) -> int | None:
    """The first that fits on both ranks, one without retries of the allocator if there is any."""
    fitting = [place for place, ends in ends_by_place.items() if all(end.fits for end in ends)]
    smooth = [
        place for place in fitting if not sum(end.num_retries for end in ends_by_place[place])
    ]
    return next(iter([*smooth, *fitting]), None)


def _ran(report: RunReport) -> bool:
    return report.verdict is Verdict.FITS and bool(report.processes) and bool(report.devices)


def _why(
    measured: _Measured, observation: Seen | None, best: _Measured | None, budget_bytes: int
) -> str:
    """Why a sharding was not chosen."""
    if observation is not None and not observation.fits:
        return observation.reason
    if observation is not None and observation.num_retries:
        return f"fits, with {observation.num_retries} retries of the allocator"
    if measured.used_bytes > budget_bytes:
        return f"{format_bytes(measured.used_bytes - budget_bytes)} too much"
    if best is None:
        return ""
    untried = "not tried: the host's part comes last" if measured.order[0] else "no faster"
    return say_more(measured.step_s, best.step_s) or untried


def _front(measured: Sequence[_Measured]) -> list[tuple[float, int]]:
    """The Pareto front of time and memory, fastest first."""
    front: list[tuple[float, int]] = []
    for candidate in sorted(measured, key=lambda each: (each.step_s, each.used_bytes)):
        if not front or candidate.used_bytes < front[-1][1]:
            front.append((candidate.step_s, candidate.used_bytes))
    return front
