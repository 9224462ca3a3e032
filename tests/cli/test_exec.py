"""Plans on the command line: what is wrong with one is one message, before anything starts; else
the program's exit is its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action

Place = Any
CHECKPOINT = Action("checkpoint", ("h.0",))
SEGMENTS = Action("allocator", settings={"expandable_segments": True})


@pytest.fixture
def write_plan(place: Place) -> Callable[..., str]:
    """Writes a plan for the made-up torch, and gives its name."""

    def write(*actions: Action, torch: str = "2.15.0+cu132") -> str:
        Plan(actions, MadeFor(torch, "GPT", 10, {"h.0": "Block"}, "AdamW")).save(
            place.directory / "plan.json", force=True
        )
        return "plan.json"

    return write


def words(place: Place, *options: str) -> list[str]:
    """`ullage exec OPTIONS -- train.py`, which would run but for the options."""
    return ["exec", "--python", str(place.python), *options, "--", "train.py", str(place.marker)]


def test_without_a_plan_there_is_nothing_to_run_under(place: Place) -> None:
    assert "no plan was given" in place.refuse(*words(place))


def test_a_plan_that_is_not_there_is_refused(place: Place) -> None:
    message = place.refuse(*words(place, "--plan", "plan.json"))
    assert "the plan 'plan.json' cannot be read" in message


def test_a_file_that_is_no_plan_is_refused(place: Place) -> None:
    (place.directory / "plan.json").write_text('{"schema": "ullage.run/1"}')
    message = place.refuse(*words(place, "--plan", "plan.json"))
    assert "plan.json: its schema is 'ullage.run/1'" in message


def test_a_plan_for_another_torch_is_refused(place: Place, write_plan: Callable[..., str]) -> None:
    plan = write_plan(CHECKPOINT, torch="2.14.0+cu130")
    message = place.refuse(*words(place, "--plan", plan))
    assert "the plan was made for torch 2.14.0+cu130, and" in message
    assert "has 2.15.0+cu132; make one for this torch with `ullage fit`" in message


def test_another_build_of_the_same_torch_will_do(
    place: Place, write_plan: Callable[..., str], make_python: Callable[..., Path], tmp_path: Path
) -> None:
    python = make_python(tmp_path / "cpu", "2.15.0+cpu", None)
    plan = write_plan(CHECKPOINT)
    done = place.run(
        "exec", "--plan", plan, "--python", str(python), "--", "train.py", str(place.marker)
    )
    assert place.marker.exists(), done.stderr


def test_an_environment_without_torch_is_refused(
    place: Place, write_plan: Callable[..., str]
) -> None:
    plan = write_plan(CHECKPOINT)
    message = place.refuse("exec", "--plan", plan, "--python", sys.executable, "--", "train.py")
    assert "no torch is installed" in message


def test_without_a_program_there_is_nothing_to_run(
    place: Place, write_plan: Callable[..., str]
) -> None:
    plan = write_plan(CHECKPOINT)
    message = place.refuse("exec", "--python", str(place.python), "--plan", plan)
    assert "no program was given" in message


def test_a_program_that_trains_nothing_has_not_had_its_plan(
    place: Place, write_plan: Callable[..., str]
) -> None:
    done = place.run(*words(place, "--plan", write_plan(CHECKPOINT)))
    assert place.marker.exists()
    assert done.returncode == 3
    assert done.stderr == (
        "ullage: the plan was not applied: the program did not import torch; "
        "a plan never silently does less than it says\n"
    )
    assert list(place.temporary.iterdir()) == []


@pytest.mark.parametrize(
    "code,expected",
    [
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("1 / 0", 1),
    ],
)
def test_a_program_that_fails_keeps_its_exit_code(
    place: Place, write_plan: Callable[..., str], code: str, expected: int
) -> None:
    (place.directory / "train.py").write_text(code)
    done = place.run(*words(place, "--plan", write_plan(CHECKPOINT)))
    assert done.returncode == expected
    assert "ullage: the plan was not applied: the program did not import torch" in done.stderr


def test_the_program_has_the_variables_of_its_plan(
    place: Place, write_plan: Callable[..., str]
) -> None:
    (place.directory / "train.py").write_text(
        "import os; print(os.environ['PYTORCH_ALLOC_CONF'], 'ULLAGE_PHANTOM' in os.environ)"
    )
    done = place.run(*words(place, "--plan", write_plan(SEGMENTS)))
    assert done.stdout == "expandable_segments:True False\n"


def test_a_run_refuses_what_is_no_plan(place: Place) -> None:
    (place.directory / "plan.json").write_text("[]")
    message = place.refuse(
        "run", "--plan", "plan.json", "--python", str(place.python), "--", "train.py"
    )
    assert "plan.json is []; expected an object" in message


def test_a_plan_and_an_option_do_not_set_the_allocator_up_both(
    place: Place, write_plan: Callable[..., str]
) -> None:
    plan = write_plan(SEGMENTS)
    message = place.refuse(
        "run", "--plan", plan, "--alloc-conf", "max_split_size_mb:64",
        "--python", str(place.python), "--", "train.py",
    )  # fmt: skip
    assert "and the plan both set the allocator up; leave one of them out" in message


def test_a_plan_and_a_guard_are_not_given_both(
    place: Place, write_plan: Callable[..., str]
) -> None:
    message = place.refuse(*words(place, "--plan", write_plan(CHECKPOINT), "--guard"))
    assert "--plan and --guard are given; expected one" in message


def test_a_cap_that_its_reserve_takes_is_refused(place: Place) -> None:
    assert "--cap 0 leaves nothing: 256.0 MiB" in place.refuse(*words(place, "--cap", "0"))


def test_a_rung_that_is_no_plan_is_refused(place: Place) -> None:
    message = place.refuse(*words(place, "--guard", "plan.json"))
    assert "the plan 'plan.json' cannot be read" in message


def test_a_rung_that_changes_rounding_is_refused(
    place: Place, write_plan: Callable[..., str]
) -> None:
    message = place.refuse(*words(place, "--guard", write_plan(SEGMENTS)))
    assert "a rung of a guard cannot have 'allocator'" in message


def test_a_rung_for_another_torch_is_refused(place: Place, write_plan: Callable[..., str]) -> None:
    plan = write_plan(CHECKPOINT, torch="2.14.0+cu130")
    assert "has 2.15.0+cu132; make" in place.refuse(*words(place, "--guard", plan))


@pytest.mark.parametrize("code,expected", [("raise SystemExit(7)", 7), ("print('done')", 0)])
def test_a_guarded_program_that_trains_nothing_is_as_without(
    place: Place, write_plan: Callable[..., str], code: str, expected: int
) -> None:
    (place.directory / "train.py").write_text(code)
    done = place.run(*words(place, "--guard", write_plan(CHECKPOINT), "--resume", "'a b' c"))
    assert (done.returncode, done.stderr) == (expected, "")
    assert list(place.temporary.iterdir()) == []


def test_words_for_a_restart_are_for_a_guard(place: Place) -> None:
    assert "--resume is for restarts; add --guard" in place.refuse(*words(place, "--resume", "x"))
    message = place.refuse(*words(place, "--guard", "--resume", "'x"))
    assert "No closing quotation" in message


def test_ranks_on_several_machines_are_refused(
    place: Place, write_plan: Callable[..., str]
) -> None:
    done = place.run(
        *words(place, "--guard", write_plan(CHECKPOINT)),
        RANK="0", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8", MASTER_PORT="29500",
    )  # fmt: skip
    assert done.returncode == 2 and not place.marker.exists()
    assert done.stderr.startswith("ullage: 8 of 16 ranks are on this machine; a guard starts them")


def test_a_capped_program_without_torch_is_told_so(place: Place) -> None:
    done = place.run(*words(place, "--cap", "2GiB"))
    line = "ullage: cap: no GPU was capped: the program did not import torch\n"
    assert (done.returncode, done.stderr) == (0, line)
    assert list(place.temporary.iterdir()) == []


def test_a_plan_of_nothing_is_said_to_be_the_program_as_it_is(
    place: Place, write_plan: Callable[..., str]
) -> None:
    done = place.run(*words(place, "--plan", write_plan()))
    assert (done.returncode, done.stderr) == (0, "ullage: plan: the unchanged program\n")
