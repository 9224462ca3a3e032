"""`ullage record` on the bare phantom: the same record as `ullage run`, files that are whole
whatever happens, and a program that is what it was.
"""

from __future__ import annotations

import array
import itertools
import json
import pickle
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.bare_gpu import RecordProgram, bare_environment, recorder
from tests.phantom.conftest import MAIN, Outcome, RunProgram, execute, find_program

import ullage
from ullage import explain_file, read_recording
from ullage.answers.text import render
from ullage.explain.compare.memory_here import NotKnown
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.ground.protocol.job import parse_job
from ullage.log.model import Record
from ullage.log.reader import read_record
from ullage.verbs.gpus.document import gpus_document
from ullage.verbs.gpus.text import gpu_blocks

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
COUNTERS_REPLACE = [
    "_cuda_memoryStats", "_cuda_resetAccumulatedMemoryStats", "_cuda_resetPeakMemoryStats",
    "_maybe_opt_step",
]  # fmt: skip

SMALL = (
    ("mlp_phases/train.py",),
    ("modules.py",),
    ("owners.py",),
)  # fmt: skip
EXAMPLES = (
    ("gpt2/train.py",), ("lstm/train.py",), ("resnet50/train.py",), ("residual_net/train.py",),
    ("moe/train.py",), ("growing_losses/train.py",), ("massive_mimo/simulate.py",),
    ("generate/generate.py",), ("bert_accelerate/train.py",), ("llama_trainer/train.py",),
    ("vit_lightning/train.py",), ("unet_diffusers/train.py",), ("out_of_memory/train.py",),
)  # fmt: skip


@pytest.fixture
def record(thin_python: Path, tmp_path: Path) -> RecordProgram:
    """Records a program of `tests/programs`."""
    return recorder(thin_python, tmp_path)


def record_fields(outcome: Outcome) -> dict[str, Any]:
    """What was written down, as plain values."""
    fields: dict[str, Any] = outcome.snapshot["ullage"]
    return fields


def without_bytes(workspaces: list[list[Any]]) -> list[list[Any]]:
    return [[*row[:3], row[4]] for row in workspaces]


def kinds_of_allocations(fields: dict[str, Any]) -> list[int]:
    sizes = array.array("q", fields["events"]["bytes"])
    rows = zip(sizes, fields["events"]["kind"], strict=True)
    return [kind for size, kind in rows if size > 0]


def compare(recorded: Outcome, run: Outcome) -> None:
    mine, theirs = record_fields(recorded), record_fields(run)
    assert mine["first_position"] == theirs["first_position"] == 0
    for column in ("address", "bytes", "reserved", "scope", "device"):
        assert mine["events"][column] == theirs["events"][column], column
    # Whether autograd noted what ran when a block was freed says nothing about the block.
    assert kinds_of_allocations(mine) == kinds_of_allocations(theirs)
    assert mine["modules"] == theirs["modules"]
    assert mine["marks"] == theirs["marks"]
    assert mine["claims"] == theirs["claims"]
    # How large the scratch is that a library was handed, only the phantom sees.
    assert without_bytes(mine["workspaces"]) == without_bytes(theirs["workspaces"])
    of_run, of_record = run.device, recorded.device
    for name in ("at_peak", "modules", "steps", "num_allocs", "num_segments"):
        assert of_record[name] == of_run[name], name
    for name in ("requested", "allocated", "reserved"):
        assert of_record[f"peak_{name}_bytes"] == of_run[f"peak_{name}_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("program", SMALL, ids=lambda program: program[0])
def test_a_record_has_the_events_owners_and_modules_of_a_run(
    record: RecordProgram, run_program: RunProgram, program: tuple[str, ...]
) -> None:
    compare(record(*program), run_program(*program))


def allocations(fields: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Size, module and device of each allocation, in their order; frees may come in another one, as
    a graph frees what it saved by the addresses of its nodes.
    """
    events = fields["events"]
    sizes = array.array("q", events["bytes"])
    scopes = array.array("i", events["scope"])
    rows = zip(sizes, scopes, events["device"], strict=True)
    return [row for row in rows if row[0] > 0]


@pytest.mark.nightly
@pytest.mark.parametrize("program", EXAMPLES, ids=lambda program: program[0])
def test_a_record_of_an_example_is_that_of_a_run(
    record: RecordProgram, run_program: RunProgram, program: tuple[str, ...]
) -> None:
    # A mask that the llama reads on the host is zeros on the bare phantom, and followed in a run.
    options = ("[run] values = false",) if program[0].startswith("llama") else ()
    recorded, run = record(*program), run_program(*program, options=options)
    mine, theirs = record_fields(recorded), record_fields(run)
    assert allocations(mine) == allocations(theirs)
    assert mine["modules"] == theirs["modules"]
    assert [mark[:2] for mark in mine["marks"]] == [mark[:2] for mark in theirs["marks"]]
    for name in ("modules", "num_allocs", "num_segments"):
        assert recorded.device[name] == run.device[name], name
    of_record, of_run = dict(recorded.device["at_peak"]), dict(run.device["at_peak"])
    for owners in (of_record, of_run):  # a run knows a cache by its later use, a record does not
        owners["activation"] += owners.pop("kv_cache")
    assert of_record == of_run
    for name in ("requested", "allocated", "reserved"):
        assert recorded.device[f"peak_{name}_bytes"] == run.device[f"peak_{name}_bytes"]


@pytest.mark.slow
def test_detached_it_leaves_nothing_and_what_it_recorded_is_what_would_have_been(
    thin_python: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    source = str(Path(ullage.__file__).parents[1])
    command = [str(thin_python), find_program("recording/in_process.py"), source, str(tmp_path)]
    variables = dict(bare_environment(thin_python, XDG_RUNTIME_DIR=str(tmp_path)))
    code, stdout, stderr = execute(command, tmp_path, variables)
    assert code == 0, stderr
    document = json.loads(stdout.splitlines()[-1])
    unrecorded = document["unrecorded"]
    for mode in ("full", "events", "counters"):
        recorded = document[mode]
        assert len(recorded["changed"]) > 3, "there were hooks"
        assert ("_BaseDataLoaderIter.__next__" in recorded["changed"]) == (mode != "counters")
        assert recorded["left"] == []
        assert recorded["result"] == unrecorded, "numbers, peaks and resets of the program's own"
        check_counts(read_record(Path(recorded["file"])), unrecorded, mode)
        check_job(recorded["job"], unrecorded, mode)
        assert not recorded["is_published"], "withdrawn at the end"
    assert document["fork"]["child"] == 0
    assert read_record(Path(document["fork"]["file"])).devices[0].peak_allocated_bytes >= 1 << 20
    (warning,) = read_record(Path(document["failed"])).warnings
    assert "a callback of ullage failed: ValueError: a defect" in warning
    assert "its own" in stderr or document["decorated"].endswith("decorated.ullage")
    assert read_recording(document["decorated"]).report.program_exit is not None
    assert Path(document["again"]).name == "full-2.pickle", "no other file is overwritten"


@pytest.mark.slow
def test_counters_have_nothing_to_do_with_an_allocation(thin_python: Path, tmp_path: Path) -> None:
    source = str(Path(ullage.__file__).parents[1])
    command = [str(thin_python), find_program("recording/idle_counters.py"), source]
    variables = dict(bare_environment(thin_python, XDG_RUNTIME_DIR=str(tmp_path)))
    code, stdout, stderr = execute(command, tmp_path, variables)
    assert code == 0, stderr
    looks = json.loads(stdout.splitlines()[-1])
    unrecorded, counters, events = (looks[name] for name in ("unrecorded", "counters", "events"))
    for name in ("calls", "is_hook_loaded", "num_noted"):
        assert counters[name] == unrecorded[name], name
    assert not counters["calls"] and not counters["is_hook_loaded"]
    # What is replaced answers questions of the program, and ends a step of a scaler.
    assert counters["replaced"] == COUNTERS_REPLACE
    replaced = [a != b for a, b in zip(unrecorded["entries"], counters["entries"], strict=True)]
    assert sum(replaced) == sum("emory" in name for name in COUNTERS_REPLACE)
    assert events["calls"] and events["is_hook_loaded"], "the test sees what there is to see"


def check_counts(record: Record, stats: dict[str, Any], mode: str) -> None:
    """The record has torch's own figures, to the byte."""
    totals = record.devices[0]
    assert totals.peak_allocated_bytes == stats["allocated"]
    assert totals.peak_requested_bytes == stats["requested"]
    assert record.measured is not None
    assert record.measured.mode == mode
    assert record.measured.num_steps == len(stats["peaks"])
    highest = [row.allocated_bytes for row in record.measured.step_peaks]
    assert max(highest) == stats["allocated"]
    assert list(itertools.accumulate(highest, max)) == stats["peaks"]
    assert (len(record.events) > 0) == (mode != "counters")


def check_job(job: dict[str, Any], stats: dict[str, Any], mode: str) -> None:
    """What is published is what a watcher reads, and no more."""
    parsed = parse_job(json.dumps(job).encode())
    assert parsed.name == "in_process.py"
    # Of what comes within a second the first is published: a phase, where phases are noted.
    phases = {None} if mode == "counters" else {None, "forward", "backward", "optimizer"}
    assert parsed.phase in phases
    assert parsed.phase is not None or parsed.step, "the end of a step, or the begin of a phase"
    peaks = [peak.allocated_peak_bytes for peak in parsed.step_peaks]
    assert list(itertools.accumulate(peaks, max)) == stats["peaks"][: parsed.step or 0]
    assert parsed.devices[0].allocated_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize(("how", "program_code", "code"), [("killed", 137, 3), ("full_disk", 7, 3)])
def test_the_last_whole_state_opens_and_the_exit_code_is_the_programs(
    record: RecordProgram, tmp_path: Path, how: str, program_code: int, code: int
) -> None:
    outcome = record("recording/ends.py", how, options=("[record] every = 0.1",))
    assert outcome.exit_code == code, outcome.stderr
    assert outcome.document["exit_code"] == program_code
    assert any("written while the program ran" in text for text in outcome.document["warnings"])
    assert outcome.record.measured is not None
    assert 1 <= outcome.record.measured.num_steps <= 6
    assert stat.S_IMODE((tmp_path / "snapshot.pickle").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if ".part" in path.name] == []
    if how == "full_disk":
        assert "could not be written" in outcome.stderr


@pytest.mark.slow
def test_an_out_of_memory_is_recorded_and_explained(record: RecordProgram, tmp_path: Path) -> None:
    outcome = record("recording/ends.py", "out_of_memory", gpu="t4")
    assert outcome.exit_code == 1, outcome.stderr
    assert outcome.document["verdict"] == "out_of_memory"
    assert outcome.document["oom"]["requested_bytes"] == 1 << 32
    assert "ends.py:" in outcome.document["oom"]["where"]
    explanation = explain_file(tmp_path / "snapshot.pickle")
    assert explanation.exit_code == 1
    assert explanation.findings[0].is_fatal


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (('[record] ring = "12"',), "too small"),
        (("[record] every = 0",), "not an interval"),
        (("--snapshot", "no/such/directory/x.pickle"), "no directory"),
    ],
)
def test_a_wrong_option_is_refused_before_the_program_runs(
    record: RecordProgram, options: tuple[str, ...], words: str
) -> None:
    outcome = record("recording/ends.py", "killed", options=options)
    assert outcome.exit_code == 2
    assert words in outcome.stderr


@pytest.mark.slow
def test_a_full_ring_keeps_the_last_events_and_the_owners_of_what_stayed(
    record: RecordProgram, tmp_path: Path
) -> None:
    outcomes = []
    for ring in ("64MiB", "1MiB"):
        options = ("--mode", "events", f'[record] ring = "{ring}"')
        outcome = record("recording/many_events.py", options=options)
        assert outcome.exit_code == 0, outcome.stderr
        outcomes.append((outcome.device, record_fields(outcome), outcome.document["warnings"]))
        (tmp_path / "snapshot.pickle").unlink()
    (whole, whole_fields, no_warnings), (device, fields, warnings) = outcomes
    num_lost = fields["measured"]["num_lost"]
    num_events = [len(each["events"]["kind"]) for each in (whole_fields, fields)]
    assert num_lost > 40_000 and num_events[1] < 40_000
    assert no_warnings == []
    (warning,) = warnings
    assert warning.startswith(f"the oldest {num_lost:,} allocator events are not in the record")
    assert device["at_peak"] == whole["at_peak"]
    assert device["at_peak"]["parameter"] == 40 * (64 * 64 * 4 + 512)
    assert device["modules"] == whole["modules"]
    assert (
        fields["measured"]["step_peaks"][-1][:4] == whole_fields["measured"]["step_peaks"][-1][:4]
    )
    assert fields["marks"][0][0] >= num_lost > whole_fields["marks"][0][0]
    # The last events are the same: the blocks before them are those that are live there.
    tail = 8 * 20_000
    assert fields["events"]["bytes"][-tail:] == whole_fields["events"]["bytes"][-tail:]
    first = fields["first_position"]
    assert first + num_events[1] == num_events[0]


@pytest.mark.slow
def test_each_rank_of_torchrun_has_a_file_and_the_larger_is_named(
    thin_python: Path, tmp_path: Path
) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [
        sys.executable, "-c", MAIN, "record", "--json", "--python", str(thin_python),
        "--snapshot", str(ranks), "--", *torchrun, find_program("recording/uneven_ranks.py"),
    ]  # fmt: skip
    variables = dict(bare_environment(thin_python, num_gpus=2, XDG_RUNTIME_DIR=str(tmp_path)))
    code, stdout, stderr = execute(command, tmp_path, variables)
    assert code == 0, stderr
    names = [path.name for path in sorted(ranks.iterdir())]
    assert len(names) == 2, "torchrun itself uses no GPU, and has no file"
    assert all(name.endswith(f"-rank{rank}.pickle") for rank, name in enumerate(names))
    explain = [sys.executable, "-c", MAIN, "explain", str(ranks)]
    code, text, stderr = execute(explain, tmp_path, variables)
    assert code == 0, stderr
    devices = read_recording(ranks).document["devices"]
    assert [device["rank"] for device in devices] == [0, 1]
    difference = devices[1]["peak_allocated_bytes"] - devices[0]["peak_allocated_bytes"]
    assert difference >= 2 * 4 << 20, "rank 1 still has all batches before the last one"
    assert "rank 1 needs more than rank 0" in " ".join(text.split())
    assert any("rank 1 needs more than rank 0" in line for line in json.loads(stdout)["warnings"])


@pytest.fixture
def measured_pair(
    record: RecordProgram, run_program: RunProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ullage.Diff]:
    """A prediction and its measurement; `measured_pair(num_others=[1])` as if a GPU that is not the
    phantom had other processes.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    predicted = run_program("mlp_phases/train.py").directory / "snapshot.pickle"
    assert record("mlp_phases/train.py").exit_code == 0
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert snapshot["ullage"]["measured"]["num_others"] == [0], "NVML counts this process alone"
    assert snapshot["ullage"]["measured"]["is_phantom"] is True

    def pair(**measured: object) -> ullage.Diff:
        snapshot["ullage"]["measured"] |= measured
        path = tmp_path / "measured.pickle"
        path.write_bytes(pickle.dumps(snapshot))
        return ullage.diff(predicted, path)

    return pair


@pytest.mark.slow
def test_what_was_measured_of_a_gpu_is_kept_and_shown(
    measured_pair: Callable[..., ullage.Diff], tmp_path: Path
) -> None:
    path = measured_pair(is_phantom=False).store_memory()
    assert path == tmp_path / "configuration" / "ullage" / "memory" / "h100-80gb.json"
    gpu = find_gpu("h100-80gb")
    document: Any = gpus_document([gpu], [])
    (entry,) = document["gpus"]
    kept = entry["measured_here"]
    assert kept["context_bytes"] > 256 << 20
    assert kept["workspace_bytes"]["cuBLAS"] >= 32 << 20
    assert kept["device"] == "NVIDIA H100 80GB HBM3"
    assert "Measured here, " in render(gpu_blocks(gpu))
    path.write_text('{"schema": "ullage.memory/1"}')
    with pytest.raises(SpecError, match="delete it"):
        gpus_document([gpu], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({}, "was the phantom"),
        ({"is_phantom": False, "num_others": [2]}, "memory of 2 other processes"),
        ({"is_phantom": False, "num_others": [None]}, "nothing tells whether"),
        ({"is_phantom": False, "num_others": []}, "nothing tells whether"),
    ],
)
def test_a_context_that_may_be_others_is_not_kept(
    measured_pair: Callable[..., ullage.Diff],
    tmp_path: Path,
    measured: dict[str, Any],
    words: str,
) -> None:
    comparison = measured_pair(**measured)
    assert isinstance(comparison.memory, NotKnown)
    assert words in comparison.memory.reason
    assert comparison.store_memory() is None
    assert not (tmp_path / "configuration").exists()


@pytest.mark.slow
def test_a_measurement_is_held_against_a_prediction_term_by_term(
    record: RecordProgram, run_program: RunProgram, tmp_path: Path
) -> None:
    assert record("mlp_phases/train.py").exit_code == 0
    measured = tmp_path / "snapshot.pickle"
    predicted = run_program("mlp_phases/train.py").directory / "snapshot.pickle"
    comparison = ullage.diff(predicted, measured)
    terms = {term.name: term for term in comparison.report.terms}
    known = ["states", "activations", "temporaries", "workspaces", "communication",
             "other tensors", "cache", "context"]  # fmt: skip
    assert list(terms) == [*known, "NCCL and libraries"]
    assert [name for name in known if not terms[name].is_inside] == []
    assert terms["states"].measured_bytes
    assert terms["NCCL and libraries"].is_inside is None
    assert "not measured" in comparison.text()
    assert ullage.diff(measured, predicted).report.terms == comparison.report.terms
    rows = {row["term"]: row for row in comparison.document["measured"]}
    assert rows["states"]["measured_bytes"] == terms["states"].measured_bytes
    other = run_program("modules.py").directory / "snapshot.pickle"
    assert ullage.diff(other, predicted).report.terms == (), "none of them was measured"
    wrong = {term.name: term for term in ullage.diff(other, measured).report.terms}
    assert wrong["states"].is_inside is False


def test_a_step_that_raised_is_over(record: RecordProgram) -> None:
    marks = [mark.kind.value for mark in record("unseen_faults.py", "failing_step").record.marks]
    assert marks.count("step") == 4
    assert marks.count("optimizer_begin") == marks.count("optimizer_end") == 5


@pytest.mark.slow
def test_a_function_of_the_programs_is_told_of_its_steps(thin_python: Path, tmp_path: Path) -> None:
    source = str(Path(ullage.__file__).parents[1])
    command = [str(thin_python), find_program("recording/logged_steps.py"), source]
    variables = dict(bare_environment(thin_python, XDG_RUNTIME_DIR=str(tmp_path)))
    code, stdout, stderr = execute(command, tmp_path, variables)
    assert code == 0, stderr
    document = json.loads(stdout.splitlines()[-1])
    peaks = document["peaks"]
    assert len(peaks) == 5, "the last was after the recording's end"
    # The first step is told at once, the others at the end, with the highest of their peaks.
    ((first, values), (last, others)) = document["rows"]
    assert (first, last) == (1, 4)
    assert others["ullage/allocated_peak_bytes"] == max(peaks[1:4])
    assert values["ullage/allocated_peak_bytes"] <= others["ullage/allocated_peak_bytes"]
    assert others["ullage/reserved_peak_bytes"] >= others["ullage/allocated_peak_bytes"]
    assert 70 * 2**30 < others["ullage/headroom_bytes"] < 80 * 2**30
    assert others["ullage/step_seconds"] > 0
    assert (others["ullage/alloc_retries"], others["ullage/ooms"]) == (0, 0)


@pytest.mark.slow
def test_the_oldest_torch_is_recorded_to_the_end(record: RecordProgram, torch_version: str) -> None:
    if not torch_version.startswith("2.6."):
        pytest.skip(f"the oldest is torch 2.6, and this is {torch_version}")
    assert "ended early" not in str(record("mlp_phases/train.py").document)
