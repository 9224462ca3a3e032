"""No program is so rude that ullage loses its record, hangs, or says what is not so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.verbs.explain.function import explain_file

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RunProgram = Callable[..., Any]

MIB = 2**20
MAIN = "from ullage.cli import main; main()"


def peaks(outcome: Any) -> list[int]:
    """The most that each process had allocated, in MiB."""
    return [device["peak_allocated_bytes"] // MIB for device in outcome.document["devices"]]


def strays(directory: Path) -> list[str]:
    """The processes that run in a directory, or did before it was removed."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            place = (entry / "cwd").readlink()
        except OSError:
            continue
        if place == directory:
            found.append((entry / "cmdline").read_text())
    return found


@pytest.mark.slow(but=("program1",))
@pytest.mark.parametrize(
    "program",
    [
        ("rude/manners.py",),
        ("rude/leaves_at_once.py", "0"),
        ("rude/interrupts_recording.py",),
    ],
)
def test_a_rude_program_leaves_a_whole_record(
    run_program: RunProgram, program: tuple[str, ...]
) -> None:
    outcome = run_program(*program)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.document["verdict"] == "fits"
    assert outcome.device["peak_allocated_bytes"] == 16 * MIB
    assert len(outcome.snapshot["segments"]) == 1
    assert outcome.document["warnings"] == []
    assert {path.name for path in outcome.directory.iterdir()} == {"snapshot.pickle"}


def test_a_program_that_leaves_at_once_with_a_code_has_failed(run_program: RunProgram) -> None:
    outcome = run_program("rude/leaves_at_once.py", "7")
    assert outcome.exit_code == 3
    assert outcome.document["reason"] == "the program exited with code 7"
    assert outcome.record.exit.kind.value == "system_exit" and outcome.record.exit.code == 7
    assert peaks(outcome) == [16]


def test_a_crash_is_told_by_its_name(run_program: RunProgram) -> None:
    outcome = run_program("rude/crashes.py", str(int(signal.SIGSEGV)))
    assert outcome.exit_code == 3
    assert outcome.document["exit_code"] == 128 + signal.SIGSEGV
    assert outcome.document["reason"] == (
        "the program was ended by signal 11 (SIGSEGV); it left no record of its use of the GPU"
    )
    assert not list(outcome.directory.iterdir())


def test_a_hangup_leaves_a_record(run_program: RunProgram) -> None:
    outcome = run_program("rude/crashes.py", str(int(signal.SIGHUP)))
    assert outcome.exit_code == 3
    assert outcome.document["reason"] == "the program was ended by signal 1 (SIGHUP)"
    assert peaks(outcome) == [16]


@pytest.mark.slow
def test_a_program_without_host_memory_leaves_a_record(run_program: RunProgram) -> None:
    outcome = run_program("rude/runs_out_of_host_memory.py")
    assert outcome.exit_code == 3
    assert outcome.document["reason"].startswith("MemoryError at runs_out_of_host_memory.py:")
    assert peaks(outcome) == [16]


@pytest.mark.slow
def test_a_record_that_cannot_be_written_is_not_taken_for_no_use(run_program: RunProgram) -> None:
    outcome = run_program("rude/may_write_little.py")
    assert outcome.exit_code == 3
    reason = "the program used the GPU and left no record of it (OSError: File too large)"
    assert outcome.document["reason"] == reason
    assert outcome.document["verdict"] == "failed"
    assert not list(outcome.directory.iterdir())


@pytest.mark.slow
def test_forked_processes_have_records_of_their_own_or_none(run_program: RunProgram) -> None:
    outcome = run_program("rude/forks.py")
    assert outcome.exit_code == 0, outcome.stderr
    assert peaks(outcome) == [16, 32]
    assert outcome.document["warnings"] == []


@pytest.mark.slow
def test_a_program_in_threads_is_followed_to_the_last(run_program: RunProgram) -> None:
    outcome = run_program("rude/threads.py")
    assert outcome.exit_code == 0, outcome.stderr
    assert "RuntimeError: in a thread" in outcome.stderr
    assert peaks(outcome) == [48], "a thread was still at work when the main one had ended"


@pytest.mark.slow
def test_ctrl_c_within_an_event_loop_is_an_interruption(run_program: RunProgram) -> None:
    outcome = run_program("rude/interrupted_in_a_loop.py")
    assert outcome.exit_code == 130
    assert outcome.document["reason"] == "interrupted"
    assert peaks(outcome) == [16]


@pytest.mark.parametrize(
    ("number", "exit_code", "reason"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (
            signal.SIGTERM,
            3,
            "the program was ended by signal 15 (SIGTERM) before it used the GPU",
        ),
    ],
)
def test_a_signal_while_torch_is_imported_ends_the_program(
    run_program: RunProgram, number: int, exit_code: int, reason: str
) -> None:
    outcome = run_program("rude/interrupts_import.py", str(int(number)))
    assert (outcome.exit_code, outcome.document["reason"]) == (exit_code, reason)
    assert not list(outcome.directory.iterdir())


@pytest.mark.slow
def test_what_a_program_leaves_running_is_ended(run_program: RunProgram) -> None:
    outcome = run_program("rude/leaves_processes.py")
    assert outcome.exit_code == 0, outcome.stderr
    first, second = outcome.document["warnings"]
    assert "-c import signal, time" in first and first.endswith("running; it was ended")
    assert "(sleep 600) running" in second
    assert strays(outcome.directory) == []


def test_a_program_that_became_a_daemon_is_not_said_to_fit(run_program: RunProgram) -> None:
    outcome = run_program("rude/becomes_a_daemon.py")
    assert outcome.exit_code == 3
    assert outcome.document["verdict"] == "failed"
    assert strays(outcome.directory) == []


@pytest.mark.slow
def test_every_python_that_a_program_starts_sees_the_device(run_program: RunProgram) -> None:
    outcome = run_program("rude/starts_pythons.py")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.printed == {
        "spawn": 1, "forkserver": 1, "shell": 1, "isolated": 1,
        "emptied": 0,  # its environment says nothing of a run: it is a python outside of one
    }  # fmt: skip
    assert peaks(outcome) == [8, 8]
    (warning,) = outcome.document["warnings"]
    assert warning.endswith("used the GPU and left no record: its memory is not counted"), (
        "python -I"
    )


@pytest.mark.slow
def test_a_locale_without_letters_for_the_program_loses_no_snapshot(
    thin_python: Path, tmp_path: Path
) -> None:
    program = tmp_path / "prög ünï.py"
    program.write_text(
        "import torch\nkept = torch.zeros(16 << 20, dtype=torch.uint8, device='cuda')\n"
    )
    words = ("run", "--gpu", "t4", "--python", str(thin_python), "-o", "page.html")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "20"}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words, "--", program.name],
        cwd=tmp_path, env={**os.environ, **ascii_only}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (snapshot,) = tmp_path.glob("*.pickle")
    explanation = explain_file(snapshot)
    assert explanation.report.devices[0].peak_allocated_bytes == 16 * MIB
    record = explanation.report.record
    assert record is not None and "the snapshot has no stacks" in " ".join(record.warnings)
    assert (tmp_path / "page.html").stat().st_size > 0
