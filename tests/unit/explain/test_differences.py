"""What two snapshots say of themselves, side by side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ullage.explain.compare.differences import find_differences

SGD = "site-packages/torch/optim/sgd.py"
ADAM = "site-packages/torch/optim/adam.py"


def side(
    *files: str, argv: tuple[str, ...] = ("train.py",), torch: str = "2.11.0",
    gpu: str = "NVIDIA L4", **settings: object,
) -> Any:  # fmt: skip
    """A report and its device, of which only what is looked at is there."""
    frames = SimpleNamespace(file=("", "train.py", *files))
    snapshot = SimpleNamespace(stacks=SimpleNamespace(frames=frames), settings=settings)
    record = SimpleNamespace(torch=torch, argv=argv)
    return (
        SimpleNamespace(snapshot=snapshot, record=record),
        SimpleNamespace(totals=SimpleNamespace(name=gpu)),
    )


def differences(before: Any, after: Any) -> list[tuple[str, object, object]]:
    return [(one.name, one.before, one.after) for one in find_differences(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (side(), side(), []),
        (side(), side(torch="2.15.0"), [("torch", "2.11.0", "2.15.0")]),
        (side(), side(gpu="NVIDIA H100"), [("GPU", "NVIDIA L4", "NVIDIA H100")]),
        (side(SGD), side(ADAM), [("optimizer", "sgd", "adam")]),
        (side(SGD, "torch/optim/lr_scheduler.py"), side(SGD, "torch/optim/optimizer.py"), []),
        (
            side("torch/utils/checkpoint.py"), side(),
            [("activation checkpointing", "on", "off")],
        ),
        (
            side(argv=("train.py", "--batch", "8", "--amp")),
            side(argv=("train.py", "--batch", "16", "--amp")),
            [("arguments", "--batch 8", "--batch 16")],
        ),
        (
            side(argv=("train.py", "--clean")), side(argv=("train.py",)),
            [("arguments", "--clean", None)],
        ),
        (
            side(expandable_segments=False), side(expandable_segments=True),
            [("setting expandable_segments", False, True)],
        ),
    ],
)  # fmt: skip
def test_what_differs_is_named_with_both_values(
    before: Any, after: Any, wanted: list[tuple[str, object, object]]
) -> None:
    assert differences(before, after) == wanted
    swapped = [(name, new, old) for name, old, new in wanted]
    assert differences(after, before) == swapped


def test_a_side_without_stacks_says_nothing_of_the_optimizer() -> None:
    silent = side()
    silent[0].snapshot.stacks.frames.file = ("",)
    assert differences(silent, side(ADAM, "torch/utils/checkpoint.py")) == []


def test_without_a_record_neither_torch_nor_arguments_are_known() -> None:
    unknown = side(torch="2.0.0", argv=("other.py",))
    unknown[0].record, unknown[1].totals = None, None
    assert differences(unknown, side()) == []


def test_what_a_run_that_ended_early_would_have_used_is_no_difference() -> None:
    """An optimizer's functions run at the end of a step, and a block may not have come yet."""
    full, short = side(ADAM, "torch/utils/checkpoint.py"), side()
    assert [*find_differences(full, short, early=1)] == []
    assert [*find_differences(short, full, early=0)] == []
    (found,) = find_differences(side(ADAM), side("torch/utils/checkpoint.py"), early=1)
    assert (found.name, found.after) == ("activation checkpointing", "on")
