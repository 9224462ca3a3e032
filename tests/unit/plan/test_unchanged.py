"""Whether a program needs a plan: one run on its device is enough to say that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.act.techniques.applying.outcome import read_outcome
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.answers.html import render_page
from ullage.answers.text import render
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.protocol.plain import document_of
from ullage.players.phantom.launch import plan_variables
from ullage.search.costs.measure import RunRequest
from ullage.search.fit import fit_unchanged
from ullage.verbs.fit.function import Fit
from ullage.verbs.fit.text import fit_blocks

GPU = find_gpu("t4")
GIB = 2**30
MADE_FOR = MadeFor("2.15.0", "Model", 7, {"blocks.0": "Block"}, "AdamW")


class Machine:
    """Stands for what makes runs: of a program that uses so much of its device."""

    def __init__(self, used_bytes: int, verdict: Verdict = Verdict.FITS, retries: int = 0) -> None:
        self.wanted: list[RunRequest] = []
        totals = SimpleNamespace(peak_allocated_bytes=used_bytes, num_alloc_retries=retries)
        self.report: Any = SimpleNamespace(
            verdict=verdict,
            reason="no room" if verdict is Verdict.OUT_OF_MEMORY else "fits",
            exit_code=0,
            time=None,
            devices=[SimpleNamespace(peak_used_bytes=used_bytes, totals=totals)],
            host=SimpleNamespace(pinned_peak_bytes=0),
            program=SimpleNamespace(argv=("train.py",), plan=SimpleNamespace(found=MADE_FOR)),
            torch="2.15.0",
            warnings=(),
        )

    def run(self, wanted: Sequence[RunRequest]) -> list[Any]:
        """The same report for all."""
        self.wanted += wanted
        return [self.report] * len(wanted)


def test_one_run_on_the_device_says_that_a_program_fits() -> None:
    machine = Machine(2 * GIB)
    report = fit_unchanged(machine.run, GPU, 4 * GIB)
    assert report is not None and report.best is not None
    assert [one.gpu for one in machine.wanted] == [GPU]
    assert report.best.is_as_it_is and report.exit_code == 0
    assert "fits 4.00 GiB of t4 unchanged: 2.00 GiB" in render(fit_blocks(report))
    assert document_of(report)["verdict"] == "fits"
    assert "unchanged" in render_page("train.py", fit_blocks(report), {})


@pytest.mark.parametrize(
    "machine",
    [
        Machine(5 * GIB),
        Machine(2 * GIB, Verdict.OUT_OF_MEMORY),
        Machine(2 * GIB, Verdict.FAILED),
        Machine(2 * GIB, retries=1),
    ],
    ids=["over the budget", "out of memory", "failed", "with retries"],
)
def test_what_does_not_plainly_fit_is_searched(machine: Machine) -> None:
    assert fit_unchanged(machine.run, GPU, 4 * GIB) is None


def test_the_plan_of_a_program_that_fits_changes_nothing(tmp_path: Path) -> None:
    report = fit_unchanged(Machine(2 * GIB).run, GPU, 4 * GIB)
    assert report is not None
    plan = Fit(report).plan_to_write
    assert plan is not None and Fit(report).plan is None
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.actions == () and again.made_for.model == "Model"
    assert not any(plan_variables(tmp_path, again).values()), "a process is told nothing"
    outcome = read_outcome(tmp_path, again)
    assert outcome.is_applied and not outcome.is_refused
