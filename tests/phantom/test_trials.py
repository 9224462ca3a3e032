"""Runs that are copies of a process which is held at the first call of its model: they leave what a
run from the program's first line leaves, and what cannot be copied is started afresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.log.model import Record
from ullage.players.phantom.device import choose_device
from ullage.search.runs.job import Job, make_job, make_options
from ullage.search.runs.trials import Trials
from ullage.verbs.run.options import RunOptions

pytestmark = [pytest.mark.slow, pytest.mark.phantom, pytest.mark.fresh]

PROGRAM = str(Path(__file__).parents[1] / "programs" / "plans" / "held.py")
TOO_SMALL = "2GiB"
ALLOCATOR = Action("allocator", (), {"expandable_segments": True})


def job_of(mode: str, python: Path, memory: str | None = None) -> Job:
    """The program on a device that never runs out, or that has this much."""
    device = choose_device("h100-80gb", memory=memory)
    device = replace(device, is_unlimited=memory is None)
    return make_job(
        [PROGRAM, mode], device=device, python=python, options=make_options(RunOptions([], steps=3))
    )


def under(job: Job, *actions: Action, described: RunReport) -> Job:
    """The job under a plan."""
    outcome = described.program.plan
    assert outcome is not None and outcome.found is not None
    found = outcome.found
    paths = {path for one in actions for path in one.modules}
    made_for = replace(found, modules={path: found.modules[path] for path in paths})
    return replace(job, options=replace(job.options, plan=Plan(actions, made_for)))


@dataclass(frozen=True, slots=True)
class Both:
    """One run as a copy, and from the program's first line."""

    copied: RunReport
    fresh: RunReport


@pytest.fixture(scope="module")
def runs(thin_python: Path) -> Iterator[dict[str, Both]]:
    """As it is, and under plans; with memory without end."""
    job = job_of("plain", thin_python)
    set_up = TECHNIQUES["allocator"].variables
    assert set_up is not None
    with Trials(job, ahead=[set_up(ALLOCATOR)]) as trials:
        described = replace(job, options=replace(job.options, describes=True))
        (first,) = trials.run([described])
        names = ("0", "2")
        jobs = {
            "as it is": described,
            "checkpoint": under(job, Action("checkpoint", names), described=first),
            "allocator": under(job, ALLOCATOR, described=first),
        }
        copies = [first, *trials.run([*jobs.values()][1:])]
        assert trials.num_copied == len(jobs)
        yield {
            name: Both(copy, *trials.run([one], is_fresh=True))
            for (name, one), copy in zip(jobs.items(), copies, strict=True)
        }


@pytest.mark.parametrize("name", ["as it is", "checkpoint", "allocator"])
def test_a_copy_allocates_what_a_run_of_its_own_does(runs: dict[str, Both], name: str) -> None:
    copied, fresh = (record_of(one) for one in (runs[name].copied, runs[name].fresh))
    for column in ("address", "size_bytes", "kind", "scope", "device"):
        mine, other = (getattr(one.events, column) for one in (copied, fresh))
        assert np.array_equal(mine, other), column
    assert copied.marks == fresh.marks
    assert copied.modules == fresh.modules
    assert (
        runs[name].copied.devices[0].peak_used_bytes == runs[name].fresh.devices[0].peak_used_bytes
    )


def test_each_copy_is_under_its_own_plan(runs: dict[str, Both]) -> None:
    peaks = {
        name: both.copied.devices[0].totals.peak_allocated_bytes for name, both in runs.items()
    }
    assert peaks["checkpoint"] < peaks["as it is"] == peaks["allocator"]
    reserved = {
        name: both.copied.devices[0].totals.peak_reserved_bytes for name, both in runs.items()
    }
    assert reserved["allocator"] != reserved["as it is"]


def test_a_copy_runs_out_of_memory_as_a_run_of_its_own(thin_python: Path) -> None:
    unlimited = job_of("plain", thin_python)
    small = job_of("plain", thin_python, TOO_SMALL)
    # As a search has it: the GPU is the same, and only runs on it come to its end.
    unlimited = replace(unlimited, device=replace(small.device, is_unlimited=True))
    with Trials(unlimited) as trials:
        ended, small_again = trials.run([unlimited, small])
        assert trials.num_copied == 2
        (fresh,) = trials.run([small], is_fresh=True)
    assert ended.verdict is Verdict.FITS
    assert small_again.verdict is fresh.verdict is Verdict.OUT_OF_MEMORY
    assert small_again.reason == fresh.reason


def test_a_plan_that_is_refused_is_not_tried_twice(thin_python: Path) -> None:
    job = job_of("plain", thin_python)
    with Trials(job) as trials:
        (first,) = trials.run([replace(job, options=replace(job.options, describes=True))])
        (refused,) = trials.run([under(job, Action("flash_attention"), described=first)])
        assert refused.verdict is Verdict.FAILED
        assert "flash_attention" in refused.reason
        assert trials.num_copied == 2


def test_what_one_copy_took_from_another_is_run_again(thin_python: Path) -> None:
    job = job_of("directory", thin_python)
    with Trials(job) as trials:
        found = [trials.run([job])[0].verdict for _ in range(2)]
        assert trials.num_copied == 1
    assert found == [Verdict.FITS, Verdict.FITS]


def test_a_program_whose_data_come_from_workers_is_copied(thin_python: Path) -> None:
    job = job_of("workers", thin_python)
    with Trials(job) as trials:
        (copied,) = trials.run([job])
        assert trials.num_copied == 1
        (fresh,) = trials.run([job], is_fresh=True)
    assert copied.verdict is fresh.verdict is Verdict.FITS
    assert (
        copied.devices[0].totals.peak_reserved_bytes == fresh.devices[0].totals.peak_reserved_bytes
    )


@pytest.mark.parametrize("mode", ["thread", "file"])
def test_more_than_memory_is_not_copied(thin_python: Path, mode: str) -> None:
    job = job_of(mode, thin_python)
    with Trials(job) as trials:
        (run,) = trials.run([job])
        assert trials.num_copied == 0
    assert run.verdict is Verdict.FITS


def record_of(run: RunReport) -> Record:
    """What its process wrote down."""
    return run.processes[0].record
