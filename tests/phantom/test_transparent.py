"""A program that looks at its own memory sees what it would see without ullage, and so does ullage.

Without: on the bare phantom, with nothing of ullage in the process (ULLAGE_RECORD=0).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.log.model import EventKind

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RunProgram = Callable[..., Any]

BARE = (("ULLAGE_RECORD", "0"),)
OWN_RECORD = ("records_itself.py", "snapshot.own")
FAILURES = (
    pytest.param("forward", marks=pytest.mark.nightly),
    "backward",
    "operation",
    pytest.param("optimizer", marks=pytest.mark.nightly),
)
MIB = 2**20


@pytest.mark.slow
def test_the_bare_phantom_leaves_no_record(run_program: RunProgram) -> None:
    # What the comparisons of this file rest on.
    outcome = run_program(*OWN_RECORD, env=BARE)
    assert outcome.document["devices"] == []
    assert outcome.printed["events"] > 100


@pytest.mark.slow
def test_a_program_that_records_and_resets_gets_what_it_would_get_alone(
    run_program: RunProgram,
) -> None:
    watched, bare = run_program(*OWN_RECORD), run_program(*OWN_RECORD, env=BARE)
    assert watched.printed == bare.printed


@pytest.mark.slow
def test_the_programs_profiler_sees_memory(run_program: RunProgram) -> None:
    # An oracle of its own for the comparison above: it must not compare nothing with nothing.
    said = run_program(*OWN_RECORD).printed
    assert said["profiler_memory_events"] > 5
    assert said["profiler_linear"] == 4
    assert (said["events_capped"], said["events_when_off"], said["events_before"]) == (10, 0, 0)


@pytest.mark.slow
def test_the_peaks_of_ullage_survive_a_reset_by_the_program(run_program: RunProgram) -> None:
    outcome = run_program(*OWN_RECORD)
    before, after = outcome.printed["peaks_before"], outcome.printed["peaks_after_reset"]
    assert after["allocated_bytes.all.peak"] < before["allocated_bytes.all.peak"]
    device = outcome.device
    for kind in ("requested", "allocated", "reserved"):
        assert device[f"peak_{kind}_bytes"] == before[f"{kind}_bytes.all.peak"]


@pytest.mark.slow
def test_the_record_of_ullage_stays_whole(run_program: RunProgram) -> None:
    outcome = run_program(*OWN_RECORD)
    record, snapshot = outcome.record, outcome.snapshot
    (totals,) = record.devices
    events = record.events
    is_birth = (events.kind == EventKind.BLOCK) & (events.size_bytes > 0)
    assert int(is_birth.sum()) == totals.num_allocs
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert actions.count("alloc") == totals.num_allocs
    # All that came is gone, cuBLAS's workspace apart: what is left is what torch says is left.
    left = sum(block["size"] for segment in snapshot["segments"] for block in segment["blocks"]
               if block["state"] != "inactive")  # fmt: skip
    assert int(events.size_bytes[events.kind == EventKind.BLOCK].sum()) == left


@pytest.mark.slow
def test_a_profile_of_the_cpu_shows_what_it_would_show_alone(run_program: RunProgram) -> None:
    watched = run_program("profiled_on_cpu.py").printed
    bare = run_program("profiled_on_cpu.py", env=BARE).printed
    assert watched == bare
    assert [1, "aten::fill_", 0] in bare
    assert [2, "[memory]", 1024 * 512 * 4] in bare


@pytest.mark.slow
def test_every_window_of_a_recording_shows_what_it_would_show_alone(
    run_program: RunProgram,
) -> None:
    watched, bare = run_program("records_windows.py"), run_program("records_windows.py", env=BARE)
    seen, expected = watched.printed, bare.printed
    for window, shown in expected.items():
        assert seen[window] == shown, window


@pytest.mark.slow
def test_the_windows_differ_as_their_options_say(run_program: RunProgram) -> None:
    bare = run_program("records_windows.py", env=BARE).printed
    assert len(bare["capped"]["actions"]) == 100
    assert bare["stopped"]["actions"] == bare["before"]["actions"] == []
    assert bare["first"]["with_frames"]["alloc"] == 10
    assert bare["without_context"]["with_frames"] == {}
    assert bare["stopped"]["blocks_with_frames"] > 0
    assert len(bare["flags_of_old"]["actions"]) == 6
    assert len(bare["flags_by_default"]["actions"]) == 1


@pytest.mark.slow
def test_the_record_of_ullage_covers_what_lies_between_the_windows(
    run_program: RunProgram,
) -> None:
    outcome = run_program("records_windows.py")
    num_allocs = outcome.device["num_allocs"]
    # 8 + 10 + 6 + 12 + 8 x 20 + 4 + 5 + 5 + 7 + 9 + 3 + 5 x 4 blocks, whether it looked or not.
    assert num_allocs == 249
    actions = [entry["action"] for entry in outcome.snapshot["device_traces"][0]]
    assert actions.count("alloc") == num_allocs


def frames(stderr: str) -> list[str]:
    """The "File ..., line ..., in ..." lines of the last traceback."""
    text = stderr.rpartition("Traceback (most recent call last):")[2]
    return re.findall(r'^  File "[^"]+", line \d+, in .*$', text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("place", FAILURES)
def test_an_uncaught_exception_shows_no_frame_of_ullage(
    run_program: RunProgram, place: str
) -> None:
    outcome = run_program("fails_within.py", place)
    assert outcome.exit_code == 3
    shown = frames(outcome.stderr)
    assert shown
    ours = Path("ullage") / "players" / "inside"
    assert not [frame for frame in shown if str(ours) in frame or "bootstrap.py" in frame]


@pytest.mark.slow
@pytest.mark.parametrize("place", FAILURES)
def test_an_uncaught_exception_has_the_users_own_traceback(
    run_program: RunProgram, place: str
) -> None:
    watched = run_program("fails_within.py", place)
    bare = run_program("fails_within.py", place, env=BARE)
    mine = [frame for frame in frames(watched.stderr) if "fails_within.py" in frame]
    assert mine
    assert mine == [frame for frame in frames(bare.stderr) if "fails_within.py" in frame]
    last = [outcome.stderr.rstrip().splitlines() for outcome in (watched, bare)]
    errors = [[line for line in lines if re.match(r"\w*Error: ", line)] for lines in last]
    assert errors[0] == errors[1] != []


@pytest.mark.slow
@pytest.mark.parametrize("place", FAILURES)
def test_frames_of_torch_differ_at_most_where_hooks_are_called(
    run_program: RunProgram, place: str
) -> None:
    def others(stderr: str) -> list[str]:
        """Frames of torch, without the lines on which a module calls hooks, and itself."""
        shown = [frame for frame in frames(stderr) if "fails_within.py" not in frame]
        return [frame for frame in shown if "nn/modules/module.py" not in frame]

    watched = run_program("fails_within.py", place)
    assert others(watched.stderr) == others(run_program("fails_within.py", place, env=BARE).stderr)


def test_no_stack_of_a_snapshot_shows_ullage(run_program: RunProgram) -> None:
    snapshot = run_program("peaks.py").snapshot
    holders = [entry for trace in snapshot["device_traces"] for entry in trace]
    holders += [block for segment in snapshot["segments"] for block in segment["blocks"]]
    files = {frame["filename"] for holder in holders for frame in holder.get("frames", [])}
    assert any(file.endswith("peaks.py") for file in files), "there are stacks"
    ours = (str(Path(ullage.__file__).parent), "torch/_ops.py")
    assert not [file for file in files if file.startswith(ours[0]) or file.endswith(ours[1])]
