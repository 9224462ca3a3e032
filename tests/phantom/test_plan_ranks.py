"""Plans for several ranks: what is refused and what is left of them, and on the phantom. That ranks
train as they should is in test_same_training.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.phantom.alone import run_alone, run_ranks
from tests.phantom.conftest import find_program
from tests.phantom.same_training import PARAMETERS, RANK_PLANS, plan_for_a_stack

import ullage
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.plan import Plan
from ullage.clock.given_work import CollectiveCall
from ullage.clock.reading import given_work
from ullage.clock.work import Collective, Kind
from ullage.log.record_schema import WORK_MARKS
from ullage.log.work_log import EntryKind
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.rank import choose_ranks
from ullage.search import menu
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.one import run_job
from ullage.verbs.run.options import RunOptions

pytestmark = pytest.mark.phantom

WIDE_BYTES = 4 * 4 * (2 * 2048 * 8192 + 2048 + 8192)
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

MakePlan = Callable[..., Plan]


@pytest.fixture(scope="session")
def make_plan(torch_version: str) -> MakePlan:
    """`make_plan("DDP")`: a plan for ranks, for a stack of blocks."""

    def make(name: str, model: str = "Stack", num_parameters: int = PARAMETERS) -> Plan:
        actions = RANK_PLANS[name]
        return plan_for_a_stack(torch_version, *actions, model=model, num_parameters=num_parameters)

    return make


def test_nothing_is_left_of_a_plan_for_ranks(
    make_plan: MakePlan, thin_python: Path, tmp_path: Path
) -> None:
    files = []
    for number, name in enumerate(RANK_PLANS):
        files.append(str(tmp_path / f"{number}.json"))
        make_plan(name).save(files[-1])
    done = run_ranks(thin_python, "plans/ranks_undone.py", *files)
    assert not any(one.returncode for one in done), [one.stderr for one in done]
    found = [json.loads(line) for line in done[0].stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(RANK_PLANS)
    for one in found:
        assert one["has_keys"], one
        assert one["difference"] == 0.0, one
        assert one["left"] == one["forward"] == one["backward"] == [], one


@pytest.mark.slow
def test_a_parameter_that_the_script_has_kept_is_refused(
    make_plan: MakePlan, thin_python: Path, tmp_path: Path
) -> None:
    make_plan("ZeRO-3").save(tmp_path / "plan.json")
    verb = ("exec", "--plan", str(tmp_path / "plan.json"))
    words = (*LAUNCH, find_program("plans/ranks.py"), str(tmp_path), "cpu", "keeps")
    done = run_alone(thin_python, *words, verb=verb)
    assert done.returncode != 0
    assert "take it from model.parameters()" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DDP", "ZeRO-1", "ZeRO-3"])
def test_a_process_alone_is_told_to_use_torchrun(
    name: str, make_plan: MakePlan, thin_python: Path, tmp_path: Path
) -> None:
    make_plan(name).save(tmp_path / "plan.json")
    verb = ("exec", "--plan", str(tmp_path / "plan.json"))
    done = run_alone(thin_python, "plans/ranks.py", str(tmp_path), "cpu", "moved", verb=verb)
    assert done.returncode == 3
    assert "torchrun --nproc-per-node 2" in done.stderr


def play(plan: Plan | None, python: Path, rank: int = 0, size: int = 4) -> Any:
    """The wide blocks as one rank, with the log of its work."""
    options = replace(
        make_options(RunOptions([], plan=plan, time=True)),
        rank=choose_ranks((rank,), size, None)[0],
    )
    job = make_job(
        [find_program("plans/wide.py")], device=choose_device("h100-80gb"), python=python,
        options=options,
    )  # fmt: skip
    return run_job(job, None, stdout_to_stderr=True)


@pytest.fixture(scope="session")
def played(make_plan: MakePlan, thin_python: Path) -> dict[str, Any]:
    """Rank 0 of four under each plan that only shares."""
    names = [name for name in RANK_PLANS if "others" not in name]
    wide = {name: make_plan(name, "Wide", WIDE_BYTES // 4) for name in names}
    return {name: play(plan, thin_python) for name, plan in wide.items()}


def sent(report: Any, kind: Kind) -> float:
    """What a rank sends in its last step by a kind of collective."""
    log = report.processes[0].record.work_log
    rows = log.entries
    ends = np.flatnonzero(
        (rows["kind"] == EntryKind.MARKED) & (rows["work"] == WORK_MARKS.index("step"))
    )
    step = rows[ends[-2] : ends[-1]]
    calls = [
        given_work(log.works[number]) for number in step["work"][step["kind"] == EntryKind.GIVEN]
    ]
    return sum(
        Collective(kind, call.num_bytes, call.num_gpus).sent_bytes
        for call in calls
        if isinstance(call, CollectiveCall) and call.name == kind.value
    )


@pytest.mark.slow
def test_a_rank_sends_what_the_ring_has_it_send(played: dict[str, Any]) -> None:
    assert all(report.verdict.value == "fits" for report in played.values())
    assert sent(played["DDP"], Kind.ALL_REDUCE) == 2 * WIDE_BYTES * 3 // 4
    assert sent(played["ZeRO-1"], Kind.ALL_REDUCE) == 2 * WIDE_BYTES * 3 // 4
    assert sent(played["ZeRO-3"], Kind.REDUCE_SCATTER) == WIDE_BYTES * 3 // 4
    # All blocks in forward, and again in backward: the last is still there, and is not prefetched
    # for nothing by more than one block.
    gathered = sent(played["ZeRO-3"], Kind.ALL_GATHER) / (WIDE_BYTES * 3 / 4)
    assert 1.75 <= gathered <= 2.25
    assert sent(played["ZeRO-2"], Kind.ALL_GATHER) == WIDE_BYTES * 3 // 4


@pytest.mark.slow
def test_each_stage_of_zero_takes_less_memory(played: dict[str, Any]) -> None:
    peaks = {name: one.devices[0].totals.peak_allocated_bytes for name, one in played.items()}
    assert peaks["DDP"] > peaks["ZeRO-1"] > peaks["ZeRO-2"] > peaks["ZeRO-3"]
    # AdamW's two states, of which three quarters are elsewhere.
    assert peaks["DDP"] - peaks["ZeRO-1"] == pytest.approx(1.5 * WIDE_BYTES, rel=0.35)


@pytest.mark.slow
def test_a_model_is_split_as_it_is_moved(
    run_program: Callable[..., Any], make_plan: MakePlan, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    make_plan("ZeRO-3", "Wide", WIDE_BYTES // 4).save(plan)
    options = ("--world-size", "4", "--rank", "3", "--plan", str(plan))
    outcome = run_program("plans/wide.py", options=options)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.document["plan"]["is_applied"]
    whole_block, share = WIDE_BYTES // 4, WIDE_BYTES // 4
    assert outcome.printed["moved"] < 1.1 * (whole_block + share) < WIDE_BYTES


@pytest.mark.slow
def test_a_rank_alone_has_the_numbers_of_a_real_process(
    run_program: Callable[..., Any], make_plan: MakePlan, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    make_plan("ZeRO-3", "Wide", WIDE_BYTES // 4).save(plan)
    alone = run_program(
        "plans/wide.py", options=("--world-size", "2", "--rank", "0", "--plan", str(plan))
    )
    both = run_program(
        "torchrun", "--standalone", "--nproc-per-node", "2", find_program("plans/wide.py"),
        options=("--gpus", "2", "--plan", str(plan)),
    )  # fmt: skip
    assert both.exit_code == 0, both.stderr
    assert both.document["plan"]["is_applied"]
    (device,) = alone.document["devices"]
    assert [one["rank"] for one in both.document["devices"]] == [0, 1]
    for one in both.document["devices"]:
        assert one["peak_allocated_bytes"] == device["peak_allocated_bytes"]


@pytest.mark.nightly
def test_a_search_for_two_gpus_finds_a_plan_that_every_rank_fits(
    thin_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = ("checkpoint", "data_parallel", "zero_optimizer", "shard")
    few = {name: replace(TECHNIQUES[name], variants=()) for name in tried}
    monkeypatch.setattr(menu, "TECHNIQUES", few)
    # More than one block has to be checkpointed: by itself no way to share takes less than 4.5 GiB.
    found = ullage.fit(
        [find_program("plans/wide.py")],
        gpu="h100-80gb",
        gpus=2,
        budget="4.25GiB",
        python=thin_python,
    )
    report = found.report
    assert found.exit_code == 0, found.text()
    assert found.plan is not None and report.best is not None and report.worst_rank is not None
    names = {one.technique for one in found.plan.actions}
    assert "checkpoint" in names and {"data_parallel", "shard"} & names
    assert found.plan.foreseen is not None and found.plan.foreseen.num_gpus == 2
    assert report.worst_rank.used_bytes <= report.budget_bytes
    assert "torchrun --nproc-per-node 2" in found.text()
    played = play(found.plan, thin_python, rank=1, size=2)
    assert played.devices[0].peak_used_bytes <= report.budget_bytes
