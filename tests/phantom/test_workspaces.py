"""The interval of cuDNN's workspaces: in the peaks of a small ResNet, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.explain.snapshot import explain_snapshot
from ullage.explain.whatif.other_ends import measure_by_events
from ullage.explain.whatif.replays import Where
from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.protocol.run import Platform
from ullage.log.bounds import Otherwise
from ullage.log.snapshot_reader import read_snapshot
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import check_torch, find_torch

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
LARGE_SEGMENT_BYTES = 20 << 20
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


def tight(outcome: Any, num_images: int, most: int = 1 << 20) -> dict[str, Any]:
    """The document of a convolution beside whose images and responses there is no workspace."""
    assert outcome.exit_code == 0, outcome.stderr
    document: dict[str, Any] = outcome.document
    image_bytes = 64 * 224 * 224 * 2
    rest = outcome.device["peak_allocated_bytes"] - 2 * num_images * image_bytes
    assert 64 * 64 * 9 * 2 < rest < most, "images, responses, and the weights"
    assert outcome.device["headroom_low_bytes"] >= 0, "no algorithm takes what there is not"
    assert not any("would be missing" in warning for warning in document["warnings"])
    assert not any("ran out of memory" in warning for warning in document["warnings"])
    return document


@pytest.mark.parametrize("options", [(), ("benchmark",)])
def test_a_workspace_that_cannot_be_had_is_done_without(
    run_program: RunProgram, options: tuple[str, ...]
) -> None:
    outcome = run_program("tight_convolution.py", "1024", *options, gpu="rtx-4090")
    document = tight(outcome, 1024)
    (missed,) = [text for text in document["warnings"] if "workspaces of convol" in text] or [""]
    # With cudnn.benchmark torch asks for no more than there is.
    assert ("up to 12.3 GiB (first at tight_convolution.py" in missed) == (not options)
    assert len(outcome.record.done_without) == (not options) and not outcome.record.ooms
    (entry,) = document["basis"]["allocator"]["assumptions"][:1]
    free_bytes = outcome.device["total_bytes"] - outcome.device["peak_used_bytes"]
    assert entry["low_bytes"] == 0 and entry["high_bytes"] <= free_bytes + (1 << 21)


@pytest.mark.parametrize("options", [(), ("benchmark",)])
def test_a_workspace_for_which_there_is_room_is_taken(
    run_program: RunProgram, options: tuple[str, ...]
) -> None:
    outcome = run_program("tight_convolution.py", "1024", *options)
    assert outcome.device["peak_allocated_bytes"] > 4 * 1024 * 64 * 224 * 224 * 2


def test_the_older_interface_of_cudnn_has_such_algorithms_too(run_program: RunProgram) -> None:
    old = (("TORCH_CUDNN_V8_API_DISABLED", "1"),)
    # torch gives it the images in two parts, and there is room for the smaller one's workspace.
    tight(run_program("tight_convolution.py", "1850", gpu="rtx-4090", env=old), 1850, 1 << 29)


def test_images_that_do_not_fit_do_not(run_program: RunProgram) -> None:
    outcome = run_program("tight_convolution.py", "2000", gpu="rtx-4090")
    assert (outcome.exit_code, outcome.document["verdict"]) == (1, "out_of_memory")


def test_the_snapshot_tells_of_no_failure_that_was_done_without(run_program: RunProgram) -> None:
    outcome = run_program("tight_convolution.py", "1024", gpu="rtx-4090")
    snapshot = read_snapshot(outcome.directory / "snapshot.pickle")
    assert explain_snapshot(snapshot).devices[0].shortage is None


def test_without_convolutions_there_is_one_end(run_program: RunProgram) -> None:
    outcome = run_program("linear.py")
    low, peak, high, reserved_low, reserved, reserved_high = ends_of(outcome)
    assert (low, high) == (peak, peak)
    assert (reserved_low, reserved_high) == (reserved, reserved)
    assert not replayed(outcome)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_record_alone_has_the_interval_too(
    run_program: RunProgram, thin_python: Path, precision: str
) -> None:
    outcome = run_program("residual_net.py", precision, gpu="rtx-4090")
    build = check_torch(find_torch(str(thin_python)), LIBRARY_DIR)
    where = Where(str(thin_python), build, choose_device(None))
    found = measure_by_events(outcome.record, where, Platform.LINUX)
    (peaks,) = [each.peaks for each in found.otherwise if each.what is Otherwise.WORKSPACES]
    ends = [each.reserved_bytes for each in peaks]
    names = "peak_reserved_low_bytes", "peak_reserved_high_bytes"
    low, high = (outcome.device[name] for name in names)
    # A record has the bytes of blocks, a snapshot also those that were asked for.
    assert abs(min(ends) - low) <= LARGE_SEGMENT_BYTES
    assert abs(max(ends) - high) <= LARGE_SEGMENT_BYTES
    assert min(ends) < outcome.device["peak_reserved_bytes"]
