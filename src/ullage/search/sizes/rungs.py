"""The rungs of a guard's ladder: for each size of the batch the fastest plan that fits, each run on
the device with every size.

The plans are those of a ladder that is measured at the largest size, of the techniques that a guard
can put on between two steps. Of them the fastest that fits is looked for, from the smallest size
that the rung before does not fit to the largest. It starts no process itself: a `SizedRunner` does.

    LadderSearch(run, gpu, budget_bytes, (512, 1024, 2048)).find()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ullage.act.techniques.ladder_file import RUNGS, Proof, ProvedRung
from ullage.act.techniques.technique import Semantics
from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.protocol.plain import figure
from ullage.search.costs.clocked import timed
from ullage.search.costs.measure import Measurements, RunRequest
from ullage.search.findings import Seen, key_of, name_plan
from ullage.search.ladder import Ladder
from ullage.search.menu import Actions
from ullage.search.outcomes import judge
from ullage.search.replays import Replays
from ullage.search.runs.search import search
from ullage.search.sizes.largest import SizedReport, SizedRunner, SizedSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderReport(SizedReport):
    """The result of a search for a ladder.

    Attributes:
        sizes: that were asked for, the smallest first.
        rungs: the fastest first, the program as it is before them.
        names: of the rungs, for people.
    """

    sizes: tuple[int, ...]
    rungs: tuple[ProvedRung, ...]
    names: tuple[str, ...]

    @property
    def proved_to(self) -> int:
        """The largest size that a rung is proved to fit; 0: none is."""
        return max((rung.proved_to for rung in self.rungs), default=0)

    @figure
    def exit_code(self) -> ExitCode:
        """The exit code of the command line: 0 if a rung fits the largest size."""
        if self.failure:
            return ExitCode.PROGRAM_FAILED
        return ExitCode.FINE if self.proved_to == self.sizes[-1] else ExitCode.ANSWER_IS_NO


class LadderSearch(SizedSearch):
    """The search for the rungs of one program on one GPU.

    Args:
        run, gpu, budget_bytes: as for `SizedSearch`.
        sizes: the smallest first.
    """

    def __init__(self, run: SizedRunner, gpu: Gpu, budget_bytes: int, sizes: Sequence[int]) -> None:
        super().__init__(run, gpu, budget_bytes)
        self._sizes = tuple(sizes)
        self._reports: dict[tuple[object, int], RunReport] = {}
        self._measured: Measurements = Measurements(self._at(sizes[-1]))
        self._left_out: dict[str, str] = {}

    def find(self, program: Sequence[str], variable: str) -> LadderReport:
        """The rungs, each with its runs."""
        plain = self._prove(())
        first = self._report((), self._sizes[0])
        failure = first.reason if first.verdict is Verdict.FAILED else ""
        rungs: list[tuple[Actions, ProvedRung]] = []
        if not failure and plain.proved_to != self._sizes[-1]:
            failure = self._measure(variable)
            rungs = [] if failure else self._climb(plain)
        return LadderReport(
            program=tuple(program),
            variable=variable,
            sizes=self._sizes,
            torch=first.torch,
            gpu=self._gpu,
            budget_bytes=self._budget_bytes,
            rungs=(plain, *(rung for _, rung in rungs)),
            names=tuple(name_plan(each, self._measured.blocks) for each, _ in [((), None), *rungs]),
            left_out=self._measured.left_out | self._left_out,
            failure=failure,
            warnings=first.warnings,
        )

    def _measure(self, variable: str) -> str:
        """Measures the program and the techniques; returns why there can be no plans, if so."""
        known = self._measured
        base = known.measure_program()
        if base is None or known.made_for is None:
            return known.first.reason or "it trains no model that a plan could be made for"
        (small,) = self._run([(self._sizes[0], RunRequest(describes=True))])
        outcome = small.program.plan
        made_for = None if outcome is None else outcome.found
        if made_for is None or made_for.num_parameters != known.made_for.num_parameters:
            return (
                f"the model has other parameters with {variable} {self._sizes[0]} than with "
                f"{self._sizes[-1]}, and a guard has one model; vary the data alone"
            )
        known.measure_techniques(Semantics.SAME, base, only=RUNGS)
        self._ladder = Ladder(known, base)
        return ""

    def _climb(self, plain: ProvedRung) -> list[tuple[Actions, ProvedRung]]:
        """The rungs after the unchanged program: those that are faster, or proved farther, than all
        others.
        """
        plans = [actions for rung in self._ladder.rungs if (actions := self._ladder.actions(rung))]
        replays = Replays(self._at(self._sizes[0]), self._measured)
        chosen: list[tuple[Actions, ProvedRung]] = []
        proved_to = plain.proved_to
        while plans and proved_to < self._sizes[-1]:
            size = min(each for each in self._sizes if each > proved_to)
            place = self._first_fitting(plans, size)
            if place is None:
                break
            actions, plans = plans[place], plans[place + 1 :]
            difference = "" if replays.of(actions).is_same else replays.of(actions).difference
            if difference:
                name = name_plan(actions, self._measured.blocks)
                self._left_out[name] = f"replayed with real numbers, {difference}"
                continue
            rung = self._prove(actions)
            if rung.proved_to > proved_to:
                chosen.append((actions, rung))
                proved_to = rung.proved_to
        return self._in_order(chosen)

    def _first_fitting(self, plans: Sequence[Actions], size: int) -> int | None:
        """The place of the fastest plan that fits, as far as memory falls from plan to plan."""
        _, place = search(
            (-1, len(plans)),
            lambda ends: sum(ends) // 2 if ends[1] - ends[0] > 1 else None,
            lambda middle: self._seen(plans[middle], size).fits,
            lambda ends, middle, fits: (ends[0], middle) if fits else (middle, ends[1]),
        )
        return place if place < len(plans) else None

    def _in_order(
        self, rungs: Sequence[tuple[Actions, ProvedRung]]
    ) -> list[tuple[Actions, ProvedRung]]:
        """Without those that are slower than one that is proved farther, at the same size."""
        return [
            each
            for place, each in enumerate(rungs)
            if not any(_is_faster(other[1], each[1]) for other in rungs[place + 1 :])
        ]

    def _prove(self, actions: Actions) -> ProvedRung:
        """A plan with its runs of all sizes."""
        self._look([(actions, size) for size in self._sizes])
        proofs = tuple(self._proof(actions, size) for size in self._sizes)
        rung = ProvedRung(self._plan(actions), proofs)
        if (proof := rung.proof) is None:
            return rung
        observation = self._seen(actions, proof.size)
        return replace(rung, plan=self._to_write(actions, observation, proof.step_s))

    def _proof(self, actions: Actions, size: int) -> Proof:
        report, observation = self._report(actions, size), self._seen(actions, size)
        time = timed(report) if observation.fits else None
        return Proof(
            size=size,
            fits=observation.fits,
            reserved_bytes=max(
                (device.totals.peak_reserved_bytes for device in report.devices), default=0
            ),
            used_bytes=observation.used_bytes,
            host_bytes=observation.host_bytes,
            step_s=0.0 if time is None else time.step.s,
        )

    def _seen(self, actions: Actions, size: int) -> Seen:
        return judge(self._report(actions, size), self._budget_bytes)

    def _report(self, actions: Actions, size: int) -> RunReport:
        self._look([(actions, size)])
        return self._reports[key_of(actions), size]

    def _look(self, pairs: Sequence[tuple[Actions, int]]) -> None:
        """Runs plans on the device, unless they ran before."""
        new = [pair for pair in pairs if (key_of(pair[0]), pair[1]) not in self._reports]
        reports = self._run([(size, RunRequest(self._plan(each), self._gpu)) for each, size in new])
        for (actions, size), report in zip(new, reports, strict=True):
            self._reports[key_of(actions), size] = report


def _is_faster(rung: ProvedRung, than: ProvedRung) -> bool:
    """True if a rung takes less time for the largest size that another is proved to fit."""
    sizes = {proof.size: proof.step_s for proof in rung.proofs}
    own = 0.0 if than.proof is None else than.proof.step_s
    return 0.0 < sizes.get(than.proved_to, 0.0) <= own
