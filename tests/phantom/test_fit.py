"""A search end to end: what it calls fitting fits, whatever the budget, and its file does so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import ullage
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Semantics
from ullage.clock.compare import Order, compare
from ullage.players.phantom.device import choose_device
from ullage.search import menu
from ullage.search.findings import FitReport
from ullage.search.runner import make_runner
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.trials import Trials
from ullage.search.search import Search
from ullage.verbs.run.options import RunOptions

pytestmark = [pytest.mark.phantom, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
GPT2 = [str(ROOT / "examples" / "gpt2" / "train.py"), "--batch-size", "4", "--steps", "2"]
MAIN = "from ullage.cli import main; main()"
TIMEOUT_S = 600
GPU = "h100-80gb"
SHARES = (1.1, 0.9, 0.5)
# Enough to mix, and few enough to run.
FEW = ("checkpoint", "optimizer_kernel")


@pytest.fixture(scope="module")
def reports(thin_python: Path) -> Iterator[list[FitReport]]:
    """A search for several budgets, the largest first; the last is too small for anything."""
    device = choose_device(GPU)
    unlimited = replace(device, is_unlimited=True)
    options = make_options(RunOptions([], time=True))
    job = make_job(GPT2, device=unlimited, python=thin_python, options=options)
    with pytest.MonkeyPatch.context() as patched, Trials(job) as trials:
        patched.setattr(menu, "TECHNIQUES", {name: TECHNIQUES[name] for name in FEW})
        search = Search(make_runner(trials, job), device.gpu, Semantics.SAME)
        whole = search.fastest(device.gpu.total_bytes)
        used = whole.as_it_is.used_bytes
        yield [whole, *(search.fastest(int(share * used)) for share in SHARES)]


def test_the_blocks_are_found(reports: list[FitReport]) -> None:
    assert [block.path for block in reports[0].blocks] == [f"blocks.{n}" for n in range(12)]


def test_what_is_called_fitting_was_seen_to_fit(reports: list[FitReport]) -> None:
    found = [report for report in reports if report.best is not None]
    assert len(found) >= 3
    for report in found:
        assert report.best is not None and report.best.seen is not None
        assert report.best.seen.fits
        assert report.best.seen.used_bytes <= report.budget_bytes


def test_every_plan_was_replayed_with_real_numbers_and_its_file_says_so(
    reports: list[FitReport],
) -> None:
    found = [report for report in reports if report.plan is not None]
    assert found
    for report in found:
        assert report.plan is not None and report.plan.foreseen is not None
        assert report.replayed is not None and report.replayed.is_same
        assert report.replayed.done and not report.replayed.not_done
        assert report.replayed.precision == "float64"
        assert report.plan.foreseen.replayed.startswith("replayed with real numbers: ")


def test_less_memory_never_gives_a_faster_plan(reports: list[FitReport]) -> None:
    times = [report.best.step_s for report in reports if report.best is not None]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_every_plan_that_ran_has_its_time_by_the_clock(reports: list[FitReport]) -> None:
    for report in reports:
        for plan in report.candidates:
            assert plan.time is not None and plan.time.step.s == plan.step_s, plan.name
            assert plan.time.step.low_s < plan.step_s < plan.time.step.high_s
            assert plan.time.num_tokens == reports[0].candidates[0].time.num_tokens  # type: ignore[union-attr]


def test_a_plan_that_checkpoints_is_surely_slower_than_none(reports: list[FitReport]) -> None:
    """It does the same work and some of it twice, whatever kernels and launches cost."""
    alone = next(one for one in reports[0].candidates if one.name == "checkpoint 12 of 12 Block")
    base = reports[0].as_it_is
    assert alone.time is not None and base.time is not None
    comparison = compare(alone.time.step, base.time.step)
    assert comparison.order is Order.SLOWER
    assert comparison.least > 0.05 and comparison.most < 0.5  # one more forward is a third of all


def test_the_bound_is_below_the_plan_and_near_it(reports: list[FitReport]) -> None:
    for report in reports:
        if report.best is not None:
            assert report.bound_s <= report.best.step_s
            assert report.gap < 0.03  # blocks are treated whole: one more is about that much


def test_a_budget_below_everything_is_said_to_be(reports: list[FitReport]) -> None:
    assert reports[-1].best is None
    assert reports[-1].exit_code == 1
    assert all("too much" in one.why for one in reports[-1].candidates if one.why != "not tried")


def test_the_profile_foresees_what_mixtures_take(reports: list[FitReport]) -> None:
    mixed = [
        one
        for report in reports
        for one in report.candidates
        if one.seen is not None and "checkpoint" in one.name
    ]
    assert mixed
    for one in mixed:
        assert one.seen is not None
        assert one.peak_bytes == pytest.approx(one.seen.allocated_bytes, rel=0.01), one.name


def test_the_file_makes_the_program_fit(thin_python: Path, reports: list[FitReport]) -> None:
    report = next(one for one in reversed(reports) if one.plan is not None)
    assert report.plan is not None and report.plan.foreseen is not None
    plan = ullage.Plan.parse(report.plan.text())
    run = ullage.run(GPT2, gpu=GPU, python=thin_python, plan=plan, steps=3, stdout_to_stderr=True)
    assert run.exit_code == 0
    assert run.peak_used_bytes == report.plan.foreseen.peak_used_bytes <= report.budget_bytes


def fit(thin_python: Path, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`ullage fit WORDS` under the environment of the tests."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, "fit", "--python", str(thin_python), *words],
        cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def test_a_program_that_fails_is_not_judged(thin_python: Path, tmp_path: Path) -> None:
    program = str(ROOT / "tests" / "programs" / "fails.py")
    done = fit(thin_python, tmp_path, "--gpu", "t4", "--json", "-o", "plan.json", "--", program)
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["verdict"]) == ("ullage.fit/1", "failed")
    assert document["failure"]
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--gpu, --memory, --budget or --smallest-gpu"),
        (["--gpu", "t4", "--budget", "100GiB"], "more than t4 has"),
        (["--gpu", "t4", "--budget", "1MiB"], "driver's own context"),
    ],
)
def test_a_goal_that_cannot_be_is_refused(
    thin_python: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    done = fit(thin_python, tmp_path, *words, "--", GPT2[0])
    assert done.returncode == 2
    assert said in done.stderr
