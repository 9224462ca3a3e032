"""Running out of memory looks as it does on the GPU, and leaves a complete record."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

MIB, GIB, PIB = 2**20, 2**30, 2**50
SOURCE = Path(__file__).parents[2] / "src" / "ullage"
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": MIB, "GiB": GIB}
SIZE = r"(\d+\.\d\d [KMG]iB|\d+ bytes)"
MESSAGE = re.compile(
    rf"CUDA out of memory\. Tried to allocate (?P<requested>{SIZE})\. "
    rf"GPU 0 has a total capacity of (?P<total>{SIZE}) of which (?P<free>{SIZE}) is free\. "
    rf"Including non-PyTorch memory, this process has (?P<used>{SIZE}) memory in use\. "
    rf"((?P<allowed>{SIZE}) allowed; )?"
    rf"Of the allocated memory (?P<allocated>{SIZE}) is allocated by PyTorch, "
    rf"and (?P<unallocated>{SIZE}) is reserved by PyTorch but unallocated\. "
)
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.M)
UNCAUGHT = {
    "out_of_memory.py": ("h100-80gb", "out_of_memory.py:10 in allocate"),
    "out_of_memory_backward.py": ("h100-80gb", "out_of_memory_backward.py:29 in main"),
    "out_of_memory_moving.py": ("a100-40gb", "out_of_memory_moving.py:12 in main"),
    "out_of_memory_own_hook.py": ("h100-80gb", "out_of_memory_own_hook.py:16 in <module>"),
}
FIELDS = {
    "schema", "verdict", "program", "exit_code", "torch", "ullage", "wall_s", "warnings", "basis",
    "host_peak_bytes", "pinned_peak_bytes", "processes", "devices", "oom", "snapshot",
}  # fmt: skip
DEVICE_FIELDS = {
    "index", "rank", "gpu", "total_bytes", "context_bytes", "context_low_bytes",
    "context_high_bytes", "non_torch_bytes", "peak_requested_bytes", "peak_allocated_bytes",
    "peak_reserved_bytes", "peak_used_bytes", "headroom_bytes", "num_allocs", "num_segments",
    "num_ooms", "num_alloc_retries", "at_peak", "modules", "steps",
}  # fmt: skip


def parse_size(text: str) -> int:
    number, unit = text.split()
    return round(float(number) * UNITS[unit])


def is_shown_as(text: str, num_bytes: int) -> bool:
    """Whether a size of a message, rounded to a hundredth of its unit, is that many bytes."""
    return abs(parse_size(text) - num_bytes) <= UNITS[text.split()[1]] / 200 + 1


def parse_message(text: str) -> dict[str, str]:
    """The numbers of torch's message, in torch's form."""
    match = MESSAGE.match(text)
    assert match, text
    return match.groupdict()


def run_uncaught(run_program: RunProgram, name: str) -> Any:
    return run_program(name, gpu=UNCAUGHT[name][0])


def frames(outcome: Any) -> list[tuple[str, str]]:
    """(file, function) of all tracebacks on stderr."""
    return [(m["file"], m["function"]) for m in FRAME.finditer(outcome.stderr)]


@pytest.mark.parametrize("name", UNCAUGHT)
def test_an_uncaught_out_of_memory_is_the_verdict(run_program: RunProgram, name: str) -> None:
    outcome = run_uncaught(run_program, name)
    assert outcome.exit_code == 1
    document = outcome.document
    assert (document["verdict"], document["exit_code"]) == ("out_of_memory", 1)
    assert document["exception"]["type"] == "torch.OutOfMemoryError"
    assert document["oom"]["where"] == UNCAUGHT[name][1]
    assert document["oom"]["message"] == document["exception"]["message"]
    assert outcome.device["num_ooms"] == 1
    assert not any("caught it" in warning for warning in document["warnings"])


@pytest.mark.parametrize("name", UNCAUGHT)
def test_the_document_of_an_out_of_memory_is_complete(run_program: RunProgram, name: str) -> None:
    outcome = run_uncaught(run_program, name)
    document, device = outcome.document, outcome.device
    assert set(document) >= FIELDS
    assert set(device) >= DEVICE_FIELDS
    assert set(document["processes"][0]) >= {"pid", "rank", "snapshot", "oom"}
    assert set(document["oom"]) >= {"requested_bytes", "message", "where", "findings"}
    assert document["snapshot"] == document["processes"][0]["snapshot"]
    assert Path(document["snapshot"]).samefile(outcome.directory / "snapshot.pickle")
    assert sum(device["at_peak"].values()) == device["peak_allocated_bytes"] > 0


@pytest.mark.parametrize("name", UNCAUGHT)
def test_the_message_has_the_numbers_of_the_gpu_that_is_not_there(
    run_program: RunProgram, name: str
) -> None:
    outcome = run_uncaught(run_program, name)
    oom, device = outcome.document["oom"], outcome.device
    said = parse_message(oom["message"])
    assert said["allowed"] is None
    assert is_shown_as(said["requested"], oom["requested_bytes"])
    assert is_shown_as(said["total"], device["total_bytes"])
    # Nothing was given back since, in these programs: the state is that of the record's end.
    reserved = sum(segment["total_size"] for segment in outcome.snapshot["segments"])
    allocated = sum(segment["allocated_size"] for segment in outcome.snapshot["segments"])
    used = reserved + device["context_bytes"] + device["non_torch_bytes"]
    if name != "out_of_memory_backward.py":  # where the unwinding of backward frees blocks
        assert is_shown_as(said["allocated"], allocated)
        assert is_shown_as(said["unallocated"], reserved - allocated)
    assert is_shown_as(said["used"], used)
    assert is_shown_as(said["free"], device["total_bytes"] - used)
    assert parse_size(said["free"]) < oom["requested_bytes"]


@pytest.mark.parametrize("name", UNCAUGHT)
def test_the_snapshots_trace_holds_the_out_of_memory(run_program: RunProgram, name: str) -> None:
    outcome = run_uncaught(run_program, name)
    oom = outcome.document["oom"]
    entries = [e for e in outcome.snapshot["device_traces"][0] if e["action"] == "oom"]
    # Tried, then tried again with the cache given back.
    assert entries and {entry["size"] for entry in entries} == {oom["requested_bytes"]}
    record = outcome.record
    assert [found.requested_bytes for found in record.ooms] == [oom["requested_bytes"]]
    assert record.ooms[0].where == oom["where"]


def test_the_traceback_is_the_users_own(run_program: RunProgram) -> None:
    outcome = run_uncaught(run_program, "out_of_memory.py")
    shown = [(Path(file).name, function) for file, function in frames(outcome)]
    assert shown == [("out_of_memory.py", "<module>"), ("out_of_memory.py", "allocate")]
    last = outcome.stderr[outcome.stderr.index("torch.OutOfMemoryError: ") :].splitlines()[0]
    assert last == f"torch.OutOfMemoryError: {outcome.document['oom']['message']}"


def test_the_traceback_from_within_backward_is_torchs_own(run_program: RunProgram) -> None:
    outcome = run_uncaught(run_program, "out_of_memory_backward.py")
    places = [Path(file).parts[-2:] for file, _ in frames(outcome)]
    program = ("programs", "out_of_memory_backward.py")
    in_torch = [("torch", "_tensor.py"), ("autograd", "__init__.py"), ("autograd", "graph.py")]
    assert places == [program, program, *in_torch]


def test_the_traceback_from_moving_a_model_is_torchs_own(run_program: RunProgram) -> None:
    outcome = run_uncaught(run_program, "out_of_memory_moving.py")
    names = {Path(file).name for file, _ in frames(outcome)}
    assert names == {"out_of_memory_moving.py", "module.py"}


def test_a_program_that_shows_exceptions_itself_does_so(run_program: RunProgram) -> None:
    outcome = run_uncaught(run_program, "out_of_memory_own_hook.py")
    assert "own hook: OutOfMemoryError: CUDA out of memory." in outcome.stderr
    assert not frames(outcome)


def test_an_error_raised_from_an_out_of_memory_shows_nothing_of_ours(
    run_program: RunProgram,
) -> None:
    outcome = run_program("out_of_memory_chained.py")
    assert outcome.exit_code == 3, "the program ended with an error of its own"
    assert "The above exception was the direct cause" in outcome.stderr
    shown = frames(outcome)
    assert [function for file, function in shown if file.endswith("chained.py")] == [
        "main", "forward", "<module>", "main",
    ]  # fmt: skip
    assert not [file for file, _ in shown if str(SOURCE) in file or file.endswith("_ops.py")]
    assert outcome.document["exception"]["type"] == "builtins.RuntimeError"
    assert outcome.device["num_ooms"] == 1


def test_memory_taken_in_backward_has_an_owner(run_program: RunProgram) -> None:
    outcome = run_uncaught(run_program, "out_of_memory_backward.py")
    at_peak = outcome.device["at_peak"]
    assert at_peak["parameter"] == 6 * 2048 * 2048 * 4
    assert at_peak["optimizer_state"] == 0, "no step was reached"
    # The program's own ballast, taken between forward and backward, counts as what backward needs.
    assert at_peak["activation"] > 0.9 * outcome.device["total_bytes"]
    assert outcome.device["headroom_bytes"] < 64 * MIB


def test_a_model_that_does_not_fit_is_known_as_far_as_it_came(run_program: RunProgram) -> None:
    outcome = run_uncaught(run_program, "out_of_memory_moving.py")
    device = outcome.device
    whole = device["total_bytes"] - device["context_bytes"]
    num_layers = whole // (4 * GIB)
    assert device["at_peak"]["parameter"] == device["peak_allocated_bytes"] == num_layers * 4 * GIB
    assert outcome.document["oom"]["requested_bytes"] == 4 * GIB


def test_a_program_that_goes_on_with_less_fits(run_program: RunProgram) -> None:
    outcome = run_program("survives_oom.py")
    assert outcome.exit_code == 0, outcome.stderr
    # The largest power of two below 79.19 GiB, halved from 1 PiB.
    assert str(64 * GIB) in outcome.stderr.splitlines()
    document = outcome.document
    assert document["verdict"] == "fits" and document["oom"] is None
    assert outcome.device["num_ooms"] == 14 == len(outcome.record.ooms)
    assert any("ran out of memory 14 times" in warning for warning in document["warnings"])
    assert outcome.device["peak_allocated_bytes"] == 64 * GIB


def test_a_training_that_halves_its_batch_fits(run_program: RunProgram) -> None:
    outcome = run_program("out_of_memory/halve_batch.py")
    assert outcome.exit_code == 0, outcome.stderr
    num_ooms = outcome.device["num_ooms"]
    tried = re.findall(r"trying batch (\d+)", outcome.stderr)
    assert [int(batch) for batch in tried] == [256 >> n for n in range(1, num_ooms + 1)]
    assert len(re.findall(r"^step \d", outcome.stderr, re.M)) == 3
    assert any("caught it and went on" in warning for warning in outcome.document["warnings"])


@pytest.mark.parametrize(
    ("way", "where", "times"),
    [
        ("four", "catches.py:28 in train", "4 times"),
        ("one", "catches.py:28 in train", "once"),
        ("lengths", "catches.py:28 in train", "once"),
        ("last", "catches.py:28 in train", "once"),
        ("drop", "catches.py:17 in take", "once"),
        ("drop_in_turn", "catches.py:17 in take", "once"),
    ],
)
def test_work_that_was_lost_is_no_fit(
    run_program: RunProgram, way: str, where: str, times: str
) -> None:
    outcome = run_program("catches.py", way, gpu="rtx-4090")
    document = outcome.document
    assert (outcome.exit_code, document["verdict"]) == (1, "out_of_memory")
    assert document["oom"]["where"] == where
    assert f"it ended what this was for, {times}, and the program went on" in document["reason"]


@pytest.mark.parametrize("way", ["halves", "shrinks", "search", "handle", "retry"])
def test_work_that_was_done_later_fits_and_is_told_how_often_it_failed(
    run_program: RunProgram, way: str
) -> None:
    outcome = run_program("catches.py", way, gpu="rtx-4090")
    assert (outcome.exit_code, outcome.document["verdict"]) == (0, "fits"), outcome.stderr
    num_ooms = outcome.device["num_ooms"]
    times = "once" if num_ooms == 1 else f"{num_ooms} times"
    assert any(f"ran out of memory {times}" in text for text in outcome.document["warnings"])


@pytest.mark.parametrize(("way", "exit_code"), [("drop_in_turn", 1), ("handle", 0), ("retry", 0)])
def test_tensors_without_a_cache_are_lost_and_made_good_likewise(
    run_program: RunProgram, way: str, exit_code: int
) -> None:
    uncached = (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),)
    outcome = run_program("catches.py", way, gpu="rtx-4090", env=uncached)
    assert outcome.exit_code == exit_code, outcome.stderr
    times = "ran out of memory once (first at catches.py:17 in take)"
    assert any(times in text for text in outcome.document["warnings"]) is (exit_code == 0)


def test_what_the_device_has_free_follows_the_segments(run_program: RunProgram) -> None:
    outcome = run_program("memory_api.py")
    said, device = outcome.printed, outcome.device
    assert said["total"] == said["total_by_properties"] == device["total_bytes"] == 85_028_896_768
    assert said["free_at_start"] == device["total_bytes"] - device["context_bytes"]
    assert said["free_with_512_mib"] == said["free_at_start"] - 512 * MIB
    assert said["free_when_cached"] == said["free_with_512_mib"]
    assert said["reserved_when_cached"] == said["allocated"] == 512 * MIB
    assert said["free_when_emptied"] == said["free_at_start"]
    assert said["reserved_when_emptied"] == 0


def test_a_limit_per_process_is_kept_and_lifted(run_program: RunProgram) -> None:
    said = run_program("memory_api.py").printed
    total = said["total"]
    over = parse_message(said["message_over_fraction"])
    assert is_shown_as(over["allowed"], total // 4)
    # A large block is a multiple of 2 MiB.
    assert is_shown_as(over["requested"], -(-total // 2 // (2 * MIB)) * 2 * MIB)
    assert parse_size(over["free"]) > total // 2, "the device itself has room"
    assert said["message_under_fraction"] is None
    assert said["message_after_lifting"] is None
    beyond = parse_message(said["message_over_device"])
    # Up to torch 2.9 the message names a limit that has been lifted, too: all of the device.
    assert beyond["allowed"] is None or is_shown_as(beyond["allowed"], total)
    assert is_shown_as(beyond["requested"], 2 * total)
    assert said["stats"]["num_ooms"] == 2


@pytest.mark.parametrize(
    ("where", "ended"),
    [
        ("thread", "thread 'saver'"),
        ("atexit", "atexit callback take"),
        ("del", "Holder.__del__"),
    ],
)
def test_what_ended_a_part_of_the_program_is_no_fit(
    run_program: RunProgram, where: str, ended: str
) -> None:
    outcome = run_program("rude/loses_work.py", where, gpu="t4")
    assert outcome.exit_code == 1
    assert outcome.document["verdict"] == "out_of_memory"
    assert outcome.document["oom"]["where"] == "loses_work.py:13 in take"
    assert outcome.document["reason"] == (
        f"no room for 1.0 PiB at loses_work.py:13 in take; it ended {ended}, and the program went "
        "on without it"
    )
    assert str(SOURCE) not in outcome.stderr, "no frame of ullage is shown"


@pytest.mark.slow
def test_thousands_of_failures_that_are_caught_cost_next_to_nothing(
    run_program: RunProgram,
) -> None:
    outcome = run_program("rude/catches_many.py", gpu="t4")
    assert outcome.exit_code == 1
    assert outcome.device["num_ooms"] == 4001
    took = outcome.printed
    assert took["median_s"] < took["first_s"] / 10, took
    assert "it ended what this was for, 4001 times" in outcome.document["reason"]
