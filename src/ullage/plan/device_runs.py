"""The runs of plans on the device of a search, each made once, and what the clock says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.gpus.catalog import Gpu
from ullage.plan.costs.clocked import Timed, timed
from ullage.plan.costs.measure import Measurements, Runner, RunRequest
from ullage.plan.findings import Key, Seen, key_of
from ullage.plan.menu import Actions
from ullage.plan.outcomes import judge
from ullage.plan.replays import Replays


class DeviceRuns:
    """The runs of plans on a device; each is made once.

    Args:
        run: makes runs.
        gpu: the device.
        known: the runs of the program and of single techniques.
        replays: those of plans with real numbers.
    """

    def __init__(self, run: Runner, gpu: Gpu, known: Measurements, replays: Replays) -> None:
        self._run = run
        self._gpu = gpu
        self._measured = known
        self._replays = replays
        self._reports: dict[Key, RunReport] = {}
        self._times: dict[Key, Timed] = {}
        self._confirmed: set[Key] = set()

    def see(self, plans: Sequence[Actions], budget_bytes: int) -> list[Seen]:
        """Runs plans, unless they ran before."""
        by_key = {key_of(plan): plan for plan in plans}
        new = [plan for key, plan in by_key.items() if key not in self._reports]
        requests = [RunRequest(self._measured.plan_to_run(plan), self._gpu) for plan in new]
        for actions, report in zip(new, self._run(requests) if requests else [], strict=True):
            self._note(actions, report)
        return [judge(self._reports[key_of(plan)], budget_bytes) for plan in plans]

    def confirm(self, actions: Actions, budget_bytes: int) -> bool:
        """True if a plan fits in a run from the program's first line in a process of its own."""
        key = key_of(actions)
        if key not in self._confirmed:
            request = RunRequest(self._measured.plan_to_run(actions), self._gpu, is_fresh=True)
            (report,) = self._run([request])
            self._note(actions, report)
            self._confirmed.add(key)
        return judge(self._reports[key], budget_bytes).fits

    def learnable(self, actions: Actions) -> RunReport:
        """The run of a plan that ran on the device; with unlimited memory if it did not fit."""
        report = self._reports[key_of(actions)]
        if report.verdict is Verdict.OUT_OF_MEMORY:
            (report,) = self._run([RunRequest(self._measured.plan_to_run(actions))])
            self._note_time(actions, report)
        return report

    def seen(self, actions: Actions, budget_bytes: int) -> Seen | None:
        """The result of a run of a plan; None: it did not run."""
        if (report := self._reports.get(key_of(actions))) is None:
            return None
        observation = judge(report, budget_bytes)
        if difference := self._replays.difference(actions):
            return replace(observation, fits=False, reason=f"replayed, {difference}")
        return observation

    def time(self, actions: Actions) -> Timed | None:
        """The time of a plan's step, by its last run that was timed; None: there is none."""
        return self._times.get(key_of(actions))

    def shortest_s(self, plans: Sequence[Actions]) -> float:
        """The likely seconds of the shortest step of these plans; 0: none was timed."""
        times = [self.time(plan) for plan in plans]
        return min((time.step.s for time in times if time is not None), default=0.0)

    def _note(self, actions: Actions, report: RunReport) -> None:
        self._reports[key_of(actions)] = report
        self._note_time(actions, report)

    def _note_time(self, actions: Actions, report: RunReport) -> None:
        if (time := timed(report)) is not None:
            self._times[key_of(actions)] = time
