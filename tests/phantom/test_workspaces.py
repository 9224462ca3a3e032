"""The interval of cuDNN's workspaces: in the peaks of a small ResNet, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
ENDS = (
    "peak_allocated_low_bytes", "peak_allocated_bytes", "peak_allocated_high_bytes",
    "peak_reserved_low_bytes", "peak_reserved_bytes", "peak_reserved_high_bytes",
)  # fmt: skip


def ends_of(outcome: Any) -> list[int]:
    assert outcome.exit_code == 0, outcome.stderr
    return [outcome.device[name] for name in ENDS]


def replayed(outcome: Any) -> list[dict[str, Any]]:
    """The entries of the basis that the replay made."""
    assumptions: list[dict[str, Any]] = outcome.document["basis"]["allocator"]["assumptions"]
    return [entry for entry in assumptions if "workspaces of libraries" in entry["what"]]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_residual_network_has_the_interval(run_program: RunProgram, precision: str) -> None:
    outcome = run_program("residual_net.py", precision, gpu="rtx-4090")
    low, peak, high, reserved_low, reserved, reserved_high = ends_of(outcome)
    assert low < peak < high
    assert reserved_low < reserved < reserved_high
    assert low <= reserved_low
    allocated_entry, reserved_entry = replayed(outcome)
    assert (allocated_entry["low_bytes"], allocated_entry["high_bytes"]) == (low, high)
    assert reserved_entry["low_bytes"] == reserved_low
    assert reserved_entry["high_bytes"] == reserved_high
    device = outcome.device
    more = device["headroom_bytes"] - device["headroom_low_bytes"]
    assert more >= reserved_high - reserved, "the headroom has the upper end"


def test_without_convolutions_there_is_one_end(run_program: RunProgram) -> None:
    outcome = run_program("linear.py")
    low, peak, high, reserved_low, reserved, reserved_high = ends_of(outcome)
    assert (low, high) == (peak, peak)
    assert (reserved_low, reserved_high) == (reserved, reserved)
    assert not replayed(outcome)
