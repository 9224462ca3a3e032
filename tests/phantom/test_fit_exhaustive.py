"""On a small program the search finds what trying everything finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
from benchmarks.plans.probed import ProbedSearch

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Semantics
from ullage.players.phantom.device import choose_device
from ullage.search import menu
from ullage.search.findings import Candidate, FitReport
from ullage.search.menu import Actions
from ullage.search.runner import make_runner
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.trials import Trials
from ullage.verbs.run.options import RunOptions

pytestmark = [pytest.mark.phantom, pytest.mark.nightly]

PROGRAM = str(Path(__file__).parents[1] / "programs" / "plans" / "held.py")
FEW = ("checkpoint", "optimizer_kernel")
GPU = "h100-80gb"
NUM_BUDGETS = 6


@dataclass(frozen=True, slots=True)
class Found:
    """The answers for several budgets, and all mixtures, each as it was seen."""

    reports: list[FitReport]
    everything: list[Candidate]


@pytest.fixture(scope="module")
def found(thin_python: Path) -> Iterator[Found]:
    """A search of four blocks; budgets from all that anything takes to the least."""
    device = choose_device(GPU)
    unlimited = replace(device, is_unlimited=True)
    words = [PROGRAM, "plain"]
    job = make_job(
        words, device=unlimited, python=thin_python, options=make_options(RunOptions([], steps=3))
    )
    with pytest.MonkeyPatch.context() as patched, Trials(job) as trials:
        patched.setattr(menu, "TECHNIQUES", {name: TECHNIQUES[name] for name in FEW})
        search = ProbedSearch(make_runner(trials, job), device.gpu, Semantics.SAME)
        whole = search.fastest(device.gpu.total_bytes)
        most, least = whole.as_it_is.used_bytes, search.leanest(device.gpu.total_bytes).best
        assert least is not None
        step = (most - least.used_bytes) // (NUM_BUDGETS - 1)
        budgets = [most - number * step for number in range(NUM_BUDGETS)]
        reports = [search.fastest(one) for one in budgets]
        yield Found(reports, search.look_at(list(mixtures(search))))


def mixtures(search: ProbedSearch) -> Iterator[Actions]:
    """Every treatment of every block under every setting of the moves."""
    paths = [block.path for block in search.blocks]
    kinds = [(), *search.treatments]
    for moves in menu.settings([one[0] for one in search.moves]):
        for chosen in product(range(len(kinds)), repeat=len(paths)):
            actions: list[menu.Action] = list(moves)
            for number, treatment in enumerate(kinds):
                named = tuple(
                    path for path, one in zip(paths, chosen, strict=True) if one == number
                )
                actions = [replace(one, modules=named) for one in treatment if named] + actions
            yield tuple(actions)


def test_the_answer_is_the_fastest_of_all_that_fit(found: Found) -> None:
    assert len(found.everything) >= 2**4 * 2
    for report in found.reports:
        fitting = [one for one in found.everything if fits(one, report.budget_bytes)]
        assert report.best is not None and fitting
        assert report.best.step_s == pytest.approx(min(one.step_s for one in fitting), rel=1e-9)


def test_no_mixture_that_holds_as_little_beats_the_bound(found: Found) -> None:
    for report in found.reports:
        assert report.best is not None
        as_lean = [one for one in found.everything if fits(one, report.best.used_bytes)]
        assert as_lean
        assert report.bound_s <= min(one.step_s for one in as_lean) * (1 + 1e-9)


def fits(one: Candidate, budget_bytes: int) -> bool:
    """Whether a mixture was seen to stay within a budget."""
    return one.seen is not None and one.seen.fits and one.used_bytes <= budget_bytes
