"""A share of an optimizer's states in the host's memory: the rest stays on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.explain.run import RunReport
from ullage.ground.units import MIB
from ullage.log.model import EventKind
from ullage.players.phantom.device import choose_device
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.trials import Trials
from ullage.verbs.run.options import RunOptions

pytestmark = pytest.mark.phantom

PROGRAM = str(Path(__file__).parents[1] / "programs" / "plans" / "held.py")
# Two states of each of 4 blocks' weights, 32 MiB a block, and biases.
STATES_MIB, WEIGHT_MIB = 256, 16
PERCENTS = (1, 50, 100)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run holds at its end of the device, and at most of pinned memory; MiB."""

    on_device: float
    pinned: float


@pytest.fixture(scope="module")
def taken(thin_python: Path) -> Iterator[dict[int, Taken]]:
    """By the share."""
    device = replace(choose_device(), is_unlimited=True)
    words = [PROGRAM, "plain"]
    job = make_job(
        words, device=device, python=thin_python, options=make_options(RunOptions([], steps=3))
    )
    with Trials(job) as trials:
        described = replace(job, options=replace(job.options, describes=True))
        outcome = trials.run([described])[0].program.plan
        assert outcome is not None and outcome.found is not None
        made_for = replace(outcome.found, modules={})
        plans = [
            Plan((Action("optimizer_offload", (), {"percent": one, "part_mib": 16}),), made_for)
            for one in PERCENTS
        ]
        runs = trials.run([replace(job, options=replace(job.options, plan=one)) for one in plans])
        yield dict(zip(PERCENTS, map(measure, runs), strict=True))


def measure(run: RunReport) -> Taken:
    """What is held when the last step has ended."""
    events = run.processes[0].record.events
    blocks = events.size_bytes[events.kind == EventKind.BLOCK]
    return Taken(float(np.sum(blocks)) / MIB, run.host.pinned_peak_bytes / MIB)


def test_half_of_the_states_leaves_the_other_half(taken: dict[int, Taken]) -> None:
    freed = {one: taken[1].on_device - taken[one].on_device for one in PERCENTS}
    assert freed[100] == pytest.approx(STATES_MIB, abs=1)
    assert freed[50] == pytest.approx(STATES_MIB / 2, abs=2 * WEIGHT_MIB)


@pytest.mark.slow
def test_the_host_holds_what_the_device_does_not(taken: dict[int, Taken]) -> None:
    assert taken[1].pinned <= WEIGHT_MIB
    assert STATES_MIB / 2 - WEIGHT_MIB <= taken[50].pinned < taken[100].pinned
    assert taken[100].pinned >= STATES_MIB
