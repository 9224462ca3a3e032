"""A rung that moves more to the host than the host has is left out, and that is said once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ullage.act.guard.host.host_memory import Room
from ullage.act.guard.ladder import HostCheck
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Foreseen, Plan
from ullage.act.techniques.technique import Action

GIB = 1 << 30
MADE_FOR = MadeFor("2.15.0", "Model", 1, {"block": "Block"})
CHECKPOINT = Plan((Action("checkpoint", ("block",)),), MADE_FOR)
OFFLOAD = Plan((Action("offload_activations", ("block",)),), MADE_FOR)
FORESEEN = Foreseen("h100-80gb", 80 * GIB, GIB, GIB, 0.1, host_bytes=3 * GIB)


def check_of(*plans: Plan, free_bytes: int, step_bytes: int = 0) -> HostCheck:
    """The check of some plans on a host with so much memory."""
    return HostCheck(plans, lambda: Room(free_bytes, "the group '/job'"), lambda: step_bytes)


def test_a_rung_that_needs_more_than_there_is_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check = check_of(OFFLOAD, CHECKPOINT, free_bytes=GIB, step_bytes=GIB)
    assert [check.next_below(0), check.next_below(0)] == [2, 2]
    assert check.next_above(2) == 0
    assert check.skipped == {1}
    assert capsys.readouterr().err == (
        "ullage: guard: left out rung 1 (offload_activations (1 modules)): it takes 2.0 GiB of the "
        "host's memory (at most, as a step had on the GPU), and 1.0 GiB are free in the group "
        "'/job'\n"
    )


def test_the_run_on_the_phantom_says_what_a_plan_needs(capsys: pytest.CaptureFixture[str]) -> None:
    plan = replace(OFFLOAD, foreseen=FORESEEN)
    assert check_of(plan, free_bytes=4 * GIB, step_bytes=99 * GIB).next_below(0) == 1
    assert check_of(CHECKPOINT, plan, free_bytes=2 * GIB).next_below(1) == 3
    assert "it takes 3.0 GiB of the host's memory (as on the phantom)" in capsys.readouterr().err


def test_what_is_pinned_once_is_not_asked_for_again() -> None:
    rooms = iter([4 * GIB, 0])
    check = HostCheck([OFFLOAD], lambda: Room(next(rooms), "here"), lambda: GIB)
    assert [check.next_below(0), check.next_below(0)] == [1, 1]


def test_a_rung_that_moves_nothing_needs_nothing() -> None:
    check = check_of(CHECKPOINT, free_bytes=0, step_bytes=GIB)
    assert (check.next_below(0), check.next_above(1)) == (1, 0)
