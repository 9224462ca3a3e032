"""Settings of the allocator: what is set in the environment, and what is refused."""

from __future__ import annotations

import pytest

from ullage.act.techniques.allocator import ALLOCATOR
from ullage.act.techniques.technique import Action, Value
from ullage.ground.errors import PlanError


def variables(**settings: Value) -> dict[str, str]:
    action = Action("allocator", settings=settings)
    ALLOCATOR.check(action)
    assert ALLOCATOR.variables is not None
    return dict(ALLOCATOR.variables(action))


def test_both_names_of_the_variable_are_set() -> None:
    assert variables(expandable_segments=True) == {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }


def test_settings_that_go_together_stand_in_one_text() -> None:
    settings_of = variables(max_split_size_mb=256, garbage_collection_threshold=0.8)
    assert (
        settings_of["PYTORCH_ALLOC_CONF"]
        == "max_split_size_mb:256,garbage_collection_threshold:0.8"
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "sets nothing"),
        ({"max_split_size_mb": 20}, "more than 20"),
        ({"max_split_size_mb": -1}, "0 or more"),
        ({"roundup_power2_divisions": 3}, "a power of two"),
        ({"garbage_collection_threshold": 1.0}, "below 1"),
        (
            {"expandable_segments": True, "max_split_size_mb": 128},
            "no effect on expandable segments",
        ),
        ({"expandable_segments": True, "garbage_collection_threshold": 0.5}, "choose one"),
        ({"expandable_segments": 1}, "expected bool"),
        ({"backend": "native"}, "no setting"),
    ],
)
def test_what_does_not_work_is_refused(settings: dict[str, Value], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        variables(**settings)
