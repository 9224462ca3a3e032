"""What a parent writes into the environment is what the child reads there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from tests.variables import VARIABLES

from ullage.ground.protocol import variables
from ullage.ground.protocol.run import LoneRank, PlanVariables, Platform, RunVariables
from ullage.ground.protocol.variables import device_property

PLAIN = RunVariables(Path("/run"))
FULL = RunVariables(
    run_dir=Path("/run"),
    device="name=A10;unlimited=1",
    libraries="cudnn=91002",
    num_devices=4,
    platform=Platform.WINDOWS,
    parent=17,
    progress=Path("/run/progress"),
    options={"steps": 3, "values": False, "assume": ["nonzero=half", "experts=balanced"]},
    has_snapshot=False,
    has_clock=True,
    virtual_time="h100-80gb|nvlink",
    lone_rank=LoneRank(5, 64, Path("/mail")),
    inputs=Path("/inputs"),
    nvml=Path("/node"),
)
PLAN = PlanVariables(Path("/run/plan.json"), Path("/run"), describes=True, replays=True)


def environment_of(run: RunVariables | PlanVariables) -> dict[str, str]:
    return {name: value for name, value in run.to_environment().items() if value is not None}


@pytest.mark.parametrize("run", [PLAIN, FULL], ids=["plain", "full"])
def test_a_run_comes_back_as_it_was_sent(run: RunVariables) -> None:
    assert RunVariables.from_environment(environment_of(run)) == run


@pytest.mark.parametrize("plan", [PlanVariables(), PLAN], ids=["none", "full"])
def test_a_plan_comes_back_as_it_was_sent(plan: PlanVariables) -> None:
    assert PlanVariables.from_environment(environment_of(plan)) == plan


def test_no_field_is_left_out_of_these_tests() -> None:
    assert all(
        getattr(FULL, field.name) != getattr(PLAIN, field.name)
        for field in fields(RunVariables)
        if field.name != "run_dir"
    )


def test_the_same_variables_are_set_or_unset_whatever_the_run() -> None:
    """Else a run would inherit some from a run around it."""
    assert PLAIN.to_environment().keys() == FULL.to_environment().keys()
    assert PlanVariables().to_environment().keys() == PLAN.to_environment().keys()


def test_each_variable_is_declared_once() -> None:
    constants = {
        value
        for value in vars(variables).values()
        if isinstance(value, str) and value.startswith("ULLAGE_")
    }
    names = [variable.name for variable in VARIABLES]
    assert sorted(names) == sorted(constants)
    sent = FULL.to_environment().keys() | PLAN.to_environment().keys()
    others = {
        variables.RECORD, variables.COMPLETION, variables.WARM, variables.PREFORK,
        variables.RECORDING, variables.GUARD, variables.CAP, variables.CAP_NOTES,
    }  # fmt: skip
    assert sent | others == set(names) and not sent & others


def test_a_property_of_the_device_is_read_by_its_name() -> None:
    environment = environment_of(FULL)
    assert device_property(environment, "unlimited") == "1"
    assert device_property(environment, "limit") is None
    assert device_property({}, "unlimited") is None


def test_the_names_cost_a_process_nothing() -> None:
    """It imports them before the program's first line."""
    code = (
        "import sys; import ullage.players.phantom.bootstrap; "
        "print({'dataclasses', 'inspect'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
