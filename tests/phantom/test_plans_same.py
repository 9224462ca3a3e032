"""A plan that is handed out trains the program like itself under `ullage exec`: the fast part of
`python -m benchmarks.plans.same`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.plans.same import Case, judge, search

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.search import menu
from ullage.search.findings import FitReport

pytestmark = [pytest.mark.phantom, pytest.mark.slow]

# Its blocks have masks of 4 MiB in buffers, whose values the phantom does not keep.
PROGRAM = "nanogpt-tiny"
FEW = ("checkpoint",)
SHARE = 0.8


@pytest.fixture(scope="module")
def report(thin_python: Path) -> FitReport:
    """A search of few techniques."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(menu, "TECHNIQUES", {name: TECHNIQUES[name] for name in FEW})
        ((_, found),) = search(PROGRAM, str(thin_python), minutes=5, shares=(SHARE,))
    return found


def test_replays_leave_nothing_out_that_trains_alike(report: FitReport) -> None:
    assert report.best is not None and "checkpoint" in report.best.name
    assert report.replayed is not None and report.replayed.is_same
    assert report.replayed.done and not report.replayed.not_done
    assert report.left_out == {}


def test_the_program_trains_the_same_under_it_with_weights_of_zero_too(
    report: FitReport, thin_python: Path
) -> None:
    assert report.best is not None and report.plan is not None
    case = Case(PROGRAM, "", report.best.name, "")
    found = judge(case, report.plan, str(thin_python), "its own, then zeros")
    assert not found.refused
    assert found.is_same, found
