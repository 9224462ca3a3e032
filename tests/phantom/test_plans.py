"""Scripts that know nothing of plans run under one, on the phantom and as they are, and what is
refused. That they train as they did is in test_same_training.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.phantom import same_training
from tests.phantom.conftest import find_program
from tests.phantom.same_training import DEPTH, PARAMETERS, plan_for_a_stack, rows

from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.ground.protocol.plain import plain
from ullage.players.phantom.device import choose_device
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.one import run_job
from ullage.search.runs.parallel import ParallelRuns
from ullage.verbs.run.options import RunOptions

pytestmark = pytest.mark.phantom

RunProgram = Callable[..., Any]
MakePlan = Callable[..., Plan]
LOOPS = "plans/loops.py"


@pytest.fixture(scope="session")
def make_plan(torch_version: str) -> MakePlan:
    """A plan that checkpoints the blocks of the stack, or of a model that holds it."""
    return functools.partial(plan_for_a_stack, torch_version)


@pytest.fixture(scope="session")
def run_script(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`run_script("plain", plan)`: exit code, stdout, stderr on the CPU, without the phantom."""

    def run(way: str, plan: Plan | None = None) -> tuple[int, str, str]:
        directory = tmp_path_factory.mktemp("script")
        done = same_training.run_script(thin_python, directory, plan, way)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.slow
def test_processes_that_a_script_starts_are_under_its_plan(
    make_plan: MakePlan, run_script: Callable[..., Any]
) -> None:
    code, stdout, stderr = run_script("several_processes", make_plan())
    assert code == 0, stderr
    assert rows(stdout)["plain"]["calls"] == 3 * DEPTH * 2 * 2


REFUSED = {
    "another optimizer": ("late_optimizer", {}, "the optimizer is SGD, and was AdamW"),
    "another depth": ("plain", {"num_parameters": 1}, "the number of parameters is 132,352"),
    "another model": ("plain", {"model": "Tower"}, "the model is Stack, and was Tower"),
    "a missing module": ("plain", {"modules": {"blocks.9": "Block"}}, "no module blocks.9"),
    "DataParallel": ("replicated", {}, "DataParallel copies the model at every step"),
}


@pytest.mark.parametrize("way,changes,said", REFUSED.values(), ids=REFUSED)
def test_a_plan_for_another_program_is_refused_at_its_first_step(
    make_plan: MakePlan,
    run_script: Callable[..., Any],
    way: str,
    changes: dict[str, Any],
    said: str,
) -> None:
    code, stdout, stderr = run_script(way, make_plan(**changes))
    assert code == 3
    assert rows(stdout) == {}
    assert said in stderr
    assert "ullage/act/techniques" not in stderr, "a frame of ullage is in the traceback"


def test_a_refusal_that_the_script_swallows_is_told_at_its_end(
    make_plan: MakePlan, run_script: Callable[..., Any]
) -> None:
    code, stdout, stderr = run_script("catches_all", make_plan(model="Tower"))
    assert code == 3
    assert "caught PlanError" in stdout
    assert "the plan was not applied: the plan was made for another program" in stderr


@pytest.mark.parametrize(
    "way", [pytest.param("counts", marks=pytest.mark.nightly), "catches_counts"]
)
def test_what_is_refused_after_the_plan_was_applied_is_told_at_the_end(
    make_plan: MakePlan, run_script: Callable[..., Any], way: str
) -> None:
    assert run_script(way)[0] == 0
    code, stdout, stderr = run_script(way, make_plan())
    assert code == 3
    assert ("caught PlanError" in stdout) == (way == "catches_counts")
    assert "ullage: the plan was not kept: a Block changes its buffer" in stderr


def test_what_is_refused_and_swallowed_fails_the_run(
    run_program: RunProgram, make_plan: MakePlan, tmp_path: Path
) -> None:
    make_plan().save(tmp_path / "plan.json")
    run = run_program(
        LOOPS, "catches_counts", "cuda", options=("--plan", str(tmp_path / "plan.json"))
    )
    assert run.exit_code == 3
    assert run.document["reason"].startswith("the plan was not kept: a Block changes its buffer")
    assert not run.document["plan"]["is_applied"]


def test_a_script_that_does_not_train_has_not_had_its_plan(
    make_plan: MakePlan, run_script: Callable[..., Any]
) -> None:
    code, _, stderr = run_script("untrained", make_plan())
    assert code == 3
    assert "a plan never silently does less than it says" in stderr


def test_another_optimizer_after_the_plan_is_refused_where_the_plan_is_about_it(
    make_plan: MakePlan, run_script: Callable[..., Any]
) -> None:
    code, _, stderr = run_script("late_optimizer", make_plan(optimizer="SGD"))
    assert code == 0, stderr
    about_it = make_plan(Action("free_gradients"), optimizer="SGD")
    code, _, stderr = run_script("late_optimizer", about_it)
    assert code == 3
    assert "an optimizer was made after the plan had been applied" in stderr


def test_a_program_that_fails_keeps_its_exit_code(
    make_plan: MakePlan, run_script: Callable[..., Any]
) -> None:
    code, _, stderr = run_script("no_such_way", make_plan())
    assert code == 1
    assert "KeyError" in stderr
    assert "the plan was not applied: the program imported torch, and made no optimizer" in stderr


@pytest.mark.slow
def test_a_plan_takes_memory_on_the_phantom_and_says_so(
    run_program: RunProgram, make_plan: MakePlan, tmp_path: Path
) -> None:
    make_plan().save(tmp_path / "plan.json")
    alone = run_program(LOOPS, "plain", "cuda")
    under = run_program(LOOPS, "plain", "cuda", options=("--plan", str(tmp_path / "plan.json")))
    assert alone.exit_code == under.exit_code == 0, under.stderr
    assert alone.document["plan"] is None
    assert under.document["plan"]["is_applied"]
    assert under.document["plan"]["summary"] == "checkpoint (4 modules)"
    assert kept(under) < kept(alone)
    assert under.record.modules == alone.record.modules, "a wrapped module is called as it was"


@pytest.mark.slow
def test_gradients_become_views_of_the_buckets_of_a_script_that_knows_nothing_of_it(
    run_program: RunProgram, run_script: Callable[..., Any], make_plan: MakePlan, tmp_path: Path
) -> None:
    plan = make_plan(Action("bucket_view"), modules={})
    plan.save(tmp_path / "plan.json")
    alone = run_program(LOOPS, "ddp", "cuda")
    under = run_program(LOOPS, "ddp", "cuda", options=("--plan", str(tmp_path / "plan.json")))
    assert under.document["plan"]["is_applied"]
    stepping = [
        one.device["steps"][-1]["phases"]["optimizer"]["peak_allocated_bytes"]
        for one in (alone, under)
    ]
    assert stepping[0] - stepping[1] >= 4 * PARAMETERS
    assert rows(run_script("ddp", plan)[1]) == rows(run_script("ddp")[1])


def kept(outcome: Any) -> int:
    """The peak of all that is not the optimizer's step."""
    return max(
        found["peak_allocated_bytes"]
        for step in outcome.device["steps"]
        for phase, found in step["phases"].items()
        if phase != "optimizer"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["compiled", pytest.param("compiled_in_place", marks=pytest.mark.nightly)]
)
def test_a_compiled_model_computes_its_blocks_again(
    run_program: RunProgram, make_plan: MakePlan, tmp_path: Path, way: str
) -> None:
    make_plan().save(tmp_path / "plan.json")
    alone = run_program(LOOPS, way, "cuda")
    under = run_program(LOOPS, way, "cuda", options=("--plan", str(tmp_path / "plan.json")))
    assert under.exit_code == 0, under.stderr
    assert kept(under) < kept(alone)


def test_a_plan_that_is_not_for_the_program_fails_the_run(
    run_program: RunProgram, make_plan: MakePlan, tmp_path: Path
) -> None:
    make_plan(model="Tower").save(tmp_path / "plan.json")
    run = run_program(LOOPS, "plain", "cuda", options=("--plan", str(tmp_path / "plan.json")))
    assert run.exit_code == 3
    assert run.document["reason"].startswith("the plan was made for another program: the model is")
    assert re.search(r"at loops\.py:\d+ in step$", run.document["reason"])


@pytest.fixture(scope="session")
def jobs(thin_python: Path) -> Callable[..., Any]:
    """`jobs(plan=plan)`: a job that trains the plain way."""
    program = [find_program(LOOPS), "plain", "cuda"]

    def make(**options: Any) -> Any:
        return make_job(
            program, device=choose_device("h100-80gb"), python=str(thin_python),
            options=replace(make_options(RunOptions([])), **options),
        )  # fmt: skip

    return make


def test_a_program_is_described_as_a_plan_wants_it(
    jobs: Callable[..., Any], make_plan: MakePlan
) -> None:
    run = run_job(jobs(describes=True), None, stdout_to_stderr=True)
    assert run.program.plan is not None
    found = run.program.plan.found
    assert found is not None
    assert make_plan().made_for.differences(found) == []
    assert found.modules["blocks.0.first"] == "Linear"
    assert plain(run)["plan"] is None


@pytest.mark.slow
def test_runs_forked_from_one_process_have_each_its_plan(
    jobs: Callable[..., Any], make_plan: MakePlan
) -> None:
    plans = [None, make_plan(), None, make_plan(Action("checkpoint", ("blocks.0",)))]
    runs = ParallelRuns([jobs(plan=plan) for plan in plans], None, None)
    runs.run_all()
    assert runs.fresh_because == ""
    peaks = [
        report.devices[0].totals.peak_allocated_bytes
        for report in runs.results
        if report is not None
    ]
    assert peaks[1] < peaks[3] < peaks[0] == peaks[2]
