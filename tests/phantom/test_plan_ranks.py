"""Plans for several ranks: with real arithmetic on two processes, and on the phantom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.phantom.device import choose_device
from ullage.phantom.rank import choose_ranks
from ullage.plan import menu
from ullage.runs.job import make_job, make_options
from ullage.runs.one import run_job
from ullage.techniques.catalog import TECHNIQUES
from ullage.techniques.made_for import MadeFor
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Action

pytestmark = pytest.mark.phantom

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "plans"
MAIN = "from ullage.cli.main import main; main()"
TIMEOUT_S = 300
BLOCKS = tuple(f"blocks.{number}" for number in range(4))
NUM_PARAMETERS = 132_352
WIDE_BYTES = 4 * 4 * (2 * 2048 * 8192 + 2048 + 8192)
AVERAGED = Action("data_parallel")
SHARDED = Action("shard", BLOCKS)
PLANS = {
    "DDP": (AVERAGED,),
    "ZeRO-1": (AVERAGED, Action("zero_optimizer")),
    "ZeRO-2": (replace(SHARDED, settings={"keeps_gathered": True}),),
    "ZeRO-3": (SHARDED,),
    "ZeRO-3 and others": (Action("checkpoint", BLOCKS), Action("free_gradients"), SHARDED),
}
# How the script does it, and what the parameters may differ by: a norm over shares of gradients is
# summed in another order than one over whole ones.
ARITHMETIC = {
    ("DDP", "moved"): 0.0,
    ("DDP", "clips"): 0.0,
    ("ZeRO-1", "clips"): 0.0,
    ("ZeRO-2", "late"): 0.0,
    ("ZeRO-3", "moved"): 0.0,
    ("ZeRO-3", "still"): 0.0,
    ("ZeRO-3", "clips"): 1e-7,
    ("ZeRO-3 and others", "late"): 0.0,
}

# The first is on top of DDP.
BY_DAY = {("ZeRO-1", "clips"), ("ZeRO-3 and others", "late")}

MakePlan = Callable[..., Plan]


@pytest.fixture(scope="session")
def make_plan(torch_version: str) -> MakePlan:
    """`make_plan("DDP")`: a plan of those above, for a stack of blocks."""

    def make(name: str, model: str = "Stack", num_parameters: int = NUM_PARAMETERS) -> Plan:
        named = dict.fromkeys(BLOCKS, "Block")
        return Plan(PLANS[name], MadeFor(torch_version, model, num_parameters, named, "AdamW"))

    return make


@pytest.fixture(scope="session")
def run_ranks(thin_python: Path) -> Callable[..., Any]:
    """`run_ranks(words, plan_file)`: two processes of torchrun on the CPU, under a plan or not."""

    def run(words: list[str], plan: Path | None = None) -> subprocess.CompletedProcess[str]:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
        command = [str(thin_python), *start]
        if plan is not None:
            under = ["exec", "--plan", str(plan), "--python", str(thin_python), "--"]
            command = [sys.executable, "-c", MAIN, *under, *start]
        return subprocess.run(
            command, text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{PROGRAMS}"},
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(*case, marks=() if case in BY_DAY else pytest.mark.nightly)
        for case in ARITHMETIC
    ],
)
def test_ranks_train_as_the_mean_of_their_gradients_would(
    name: str,
    how: str,
    make_plan: MakePlan,
    run_ranks: Callable[..., Any],
    thin_python: Path,
    tmp_path: Path,
) -> None:
    make_plan(name).save(tmp_path / "plan.json")
    done = run_ranks(
        [str(PROGRAMS / "ranks.py"), str(tmp_path), "cpu", how], tmp_path / "plan.json"
    )
    assert done.returncode == 0, done.stderr
    compared = subprocess.run(
        [str(thin_python), str(PROGRAMS / "ranks_by_hand.py"), str(tmp_path), "2", how],
        check=True, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    found = json.loads(compared.stdout)
    assert found["rows"] == found["losses"] == [True, True]
    assert found["num_rows"] == found["all_rows"], "every row is one rank's"
    assert None not in found["model"] + found["states"], "keys and kinds are as without a plan"
    assert max(found["model"] + found["states"]) <= ARITHMETIC[name, how]
    assert found["drawn"] == 2, "what ranks draw at random is their own"


def test_nothing_is_left_of_a_plan_for_ranks(
    make_plan: MakePlan, run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    files = []
    for number, name in enumerate(PLANS):
        files.append(str(tmp_path / f"{number}.json"))
        make_plan(name).save(files[-1])
    done = run_ranks([str(PROGRAMS / "ranks_undone.py"), *files])
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(PLANS)
    for one in found:
        assert one["has_keys"], one
        assert one["difference"] == 0.0, one
        assert one["left"] == one["forward"] == one["backward"] == [], one


def test_a_parameter_that_the_script_has_kept_is_refused(
    make_plan: MakePlan, run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    make_plan("ZeRO-3").save(tmp_path / "plan.json")
    words = [str(PROGRAMS / "ranks.py"), str(tmp_path), "cpu", "keeps"]
    done = run_ranks(words, tmp_path / "plan.json")
    assert done.returncode != 0
    assert "take it from model.parameters()" in done.stderr


@pytest.mark.parametrize(
    "name", [*(pytest.param(one, marks=pytest.mark.nightly) for one in ("DDP", "ZeRO-1")), "ZeRO-3"]
)
def test_a_process_alone_is_told_to_use_torchrun(
    name: str, make_plan: MakePlan, thin_python: Path, tmp_path: Path
) -> None:
    make_plan(name).save(tmp_path / "plan.json")
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "exec", "--plan", str(tmp_path / "plan.json"), "--python",
         str(thin_python), "--", str(PROGRAMS / "ranks.py"), str(tmp_path), "cpu", "moved"],
        text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "torchrun --nproc-per-node 2" in done.stderr


def play(plan: Plan | None, python: Path, rank: int = 0, size: int = 4) -> Any:
    """The wide blocks as one rank, with the work of a step."""
    options = replace(
        make_options(plan=plan), rank=choose_ranks((rank,), size, None)[0], has_work=True
    )
    job = make_job(
        [str(PROGRAMS / "wide.py")], device=choose_device("h100-80gb"), python=python,
        options=options,
    )  # fmt: skip
    return run_job(job, None, stdout_to_stderr=True)


@pytest.fixture(scope="session")
def played(make_plan: MakePlan, thin_python: Path) -> dict[str, Any]:
    """Rank 0 of four under each plan that only shares."""
    names = [name for name in PLANS if "others" not in name]
    wide = {name: make_plan(name, "Wide", WIDE_BYTES // 4) for name in names}
    return {name: play(plan, thin_python) for name, plan in wide.items()}


def sent(report: Any, name: str) -> int:
    """What a rank sends in a step by an operation."""
    work = report.processes[0].record.work
    return sum(one.peer_bytes * one.num for one in work.operations if name in one.name)


def test_a_rank_sends_what_the_ring_has_it_send(played: dict[str, Any]) -> None:
    assert all(report.verdict.value == "fits" for report in played.values())
    assert sent(played["DDP"], "allreduce") == 2 * WIDE_BYTES * 3 // 4
    assert sent(played["ZeRO-1"], "allreduce") == 2 * WIDE_BYTES * 3 // 4
    assert sent(played["ZeRO-3"], "_reduce_scatter_base_") == WIDE_BYTES * 3 // 4
    # All blocks in forward, and again in backward: the last is still there, and is not prefetched
    # for nothing by more than one block.
    gathered = sent(played["ZeRO-3"], "_allgather_base_") / (WIDE_BYTES * 3 / 4)
    assert 1.75 <= gathered <= 2.25
    assert sent(played["ZeRO-2"], "_allgather_base_") == WIDE_BYTES * 3 // 4


def test_each_stage_of_zero_takes_less_memory(played: dict[str, Any]) -> None:
    peaks = {name: one.devices[0].totals.peak_allocated_bytes for name, one in played.items()}
    assert peaks["DDP"] > peaks["ZeRO-1"] > peaks["ZeRO-2"] > peaks["ZeRO-3"]
    # AdamW's two states, of which three quarters are elsewhere.
    assert peaks["DDP"] - peaks["ZeRO-1"] == pytest.approx(1.5 * WIDE_BYTES, rel=0.35)


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


def test_a_rank_alone_has_the_numbers_of_a_real_process(
    run_program: Callable[..., Any], make_plan: MakePlan, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    make_plan("ZeRO-3", "Wide", WIDE_BYTES // 4).save(plan)
    alone = run_program(
        "plans/wide.py", options=("--world-size", "2", "--rank", "0", "--plan", str(plan))
    )
    both = run_program(
        "torchrun", "--standalone", "--nproc-per-node", "2", str(PROGRAMS / "wide.py"),
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
        [str(PROGRAMS / "wide.py")], gpu="h100-80gb", gpus=2, budget="4.25GiB", python=thin_python
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
