"""A program runs as it would by itself: its arguments, output, exit, children, surroundings."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ullage

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RunProgram = Callable[..., Any]

MIB = 2**20
PROGRAMS = Path(__file__).parents[1] / "programs"
MAIN = "from ullage.cli import main; main()"
TIMEOUT_S = 120
STEPS = ("--steps", "2")
# As the C library has it everywhere; nothing that the program would need.
HARMLESS = "libresolv.so.2"


def command_line(thin_python: Path, *words: str) -> list[str]:
    """`ullage run --gpu h100-80gb WORDS`."""
    return [
        sys.executable, "-c", MAIN, "run", "--gpu", "h100-80gb", "--python", str(thin_python),
        *words,
    ]  # fmt: skip


def test_a_program_that_exits_with_a_code_has_failed_and_its_output_passes_through(
    thin_python: Path, tmp_path: Path
) -> None:
    words = ("-o", "run.json", "--", str(PROGRAMS / "exits.py"))
    done = subprocess.run(
        command_line(thin_python, *words),
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    first, *report = done.stdout.splitlines()
    assert first == "leaving"
    assert any("exited with code 5" in line for line in report)
    assert report[-1] == "Wrote run.json"
    assert "leaving" not in done.stderr and "Traceback" not in done.stderr
    document = json.loads((tmp_path / "run.json").read_text())
    assert (document["verdict"], document["exit_code"]) == ("failed", 5)
    assert document["exception"] is None
    (device,) = document["devices"]
    assert device["peak_allocated_bytes"] == 4 * MIB, "what it used until then is there"


@pytest.mark.slow
def test_a_thread_of_autograd_that_outlives_python_does_not_abort_the_program(
    run_program: RunProgram,
) -> None:
    ended = run_program("late_backward.py")
    assert ended.document["verdict"] == "fits", ended.stderr
    assert ended.exit_code == 0


@pytest.mark.slow
def test_a_program_that_first_asks_whether_torch_is_there_is_watched(
    run_program: RunProgram,
) -> None:
    outcome = run_program("looks_for_torch.py")
    assert outcome.device["peak_allocated_bytes"] == 4 * MIB


@pytest.mark.slow
def test_a_program_that_fails_shows_its_own_error(run_program: RunProgram) -> None:
    outcome = run_program("fails.py")
    assert outcome.exit_code == 3
    message = "a shape of (1024, 1024) is not what this program wants"
    assert outcome.stderr.splitlines().count(f"ValueError: {message}") == 1
    assert 'fails.py", line 12, in <module>' in outcome.stderr
    assert 'fails.py", line 8, in check' in outcome.stderr
    assert outcome.stderr.count('  File "') == 2, "no frame of ours"
    document = outcome.document
    assert (document["verdict"], document["exit_code"], document["oom"]) == ("failed", 1, None)
    assert document["exception"] == {
        "type": "builtins.ValueError", "message": message, "where": "fails.py:8 in check",
    }  # fmt: skip
    assert outcome.device["peak_allocated_bytes"] == 4 * MIB


@pytest.mark.slow(but=("15-in Python",))
@pytest.mark.parametrize(
    ("number", "where"),
    [
        (signal.SIGTERM, "in Python"),
        (signal.SIGHUP, "in Python"),
        (signal.SIGINT, "in Python"),
        (signal.SIGTERM, "in C++"),  # where no handler of Python's runs
    ],
)
def test_a_signal_ends_the_program_and_leaves_a_record(
    thin_python: Path, tmp_path: Path, number: int, where: str
) -> None:
    words = ("--json", "--snapshot", "s.pickle", "--", str(PROGRAMS / "sigterm.py"), where)
    with subprocess.Popen(
        command_line(thin_python, *words), cwd=tmp_path, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr
        try:
            before = []
            for line in process.stderr:
                before.append(line)
                if line == "ready\n":
                    break
            assert process.poll() is None, before
            process.send_signal(number)
            stdout, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == 130, stdout
    document = json.loads(stdout)
    assert document["verdict"] == "failed"
    (device,) = document["devices"]
    assert device["peak_allocated_bytes"] == 64 * MIB
    with (tmp_path / "s.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    assert [s["total_size"] for s in snapshot["segments"]] == [64 * MIB]
    assert snapshot["ullage"]["exit"]["kind"] in {"signal", "exception"}


@pytest.mark.slow
def test_a_program_that_is_killed_has_failed_without_a_record(run_program: RunProgram) -> None:
    outcome = run_program("dies.py")
    assert outcome.exit_code == 3
    assert "dying" in outcome.stderr.splitlines()
    document = outcome.document
    assert (document["verdict"], document["exit_code"]) == ("failed", 128 + signal.SIGKILL)
    assert document["devices"] == document["processes"] == []
    assert "signal 9" in document["reason"]


@pytest.mark.slow
def test_a_program_that_uses_no_gpu_fits_with_a_warning(run_program: RunProgram) -> None:
    outcome = run_program("no_gpu_use.py", "--flag", "a b")
    assert outcome.exit_code == 0, outcome.stderr
    assert "[0, 2, 4, 6] ['--flag', 'a b']" in outcome.stderr.splitlines()
    document = outcome.document
    assert (document["verdict"], document["devices"], document["snapshot"]) == ("fits", [], None)
    assert any("did not use a GPU" in warning for warning in document["warnings"])
    assert not (outcome.directory / "snapshot.pickle").exists()


@pytest.mark.slow
def test_workers_of_a_data_loader_neither_fail_nor_count(run_program: RunProgram) -> None:
    outcome = run_program("workers.py")
    assert outcome.exit_code == 0, outcome.stderr
    assert "4" in outcome.stderr.splitlines()
    document = outcome.document
    assert len(document["processes"]) == len(document["devices"]) == 1
    # A batch is 16 vectors of 1024 floats.
    assert document["pinned_peak_bytes"] >= 16 * 1024 * 4
    assert len(outcome.device["steps"]) == 4
    assert "Traceback" not in outcome.stderr


@pytest.mark.slow
def test_a_child_that_uses_the_gpu_has_a_record_of_its_own(run_program: RunProgram) -> None:
    outcome = run_program("child_process.py")
    assert outcome.exit_code == 0, outcome.stderr
    assert str(32 * MIB) in outcome.stderr.splitlines()
    document = outcome.document
    peaks = [device["peak_allocated_bytes"] for device in document["devices"]]
    assert peaks == [16 * MIB, 32 * MIB], "the program's own first"
    first, second = (process["snapshot"] for process in document["processes"])
    assert document["snapshot"] == first != second
    with Path(second).open("rb") as file:
        segments = pickle.load(file)["segments"]
    assert [segment["total_size"] for segment in segments] == [32 * MIB]


def run_bare(thin_python: Path, *words: str, **options: Any) -> str:
    """What the thin environment's python prints without ullage."""
    command = [str(thin_python), *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S, **options
    ).stdout


def test_a_program_sees_itself_as_without_ullage(
    run_program: RunProgram, thin_python: Path
) -> None:
    arguments = ("as_main.py", "--flag", "two words", "")
    outcome = run_program(*arguments, env=(("SOME_FLAG", "kept"),))
    assert outcome.exit_code == 0, outcome.stderr
    bare = run_bare(
        thin_python, str(PROGRAMS / arguments[0]), *arguments[1:],
        cwd=outcome.directory, env={"SOME_FLAG": "kept"},
    )  # fmt: skip
    assert outcome.printed == json.loads(bare)
    assert outcome.printed["is_main"] and outcome.printed["argv"] == list(arguments[1:])


def test_a_module_runs_as_python_would_run_it(run_program: RunProgram, thin_python: Path) -> None:
    path = (("PYTHONPATH", str(PROGRAMS)),)
    outcome = run_program("-m", "as_main", "--flag", env=path)
    assert outcome.exit_code == 0, outcome.stderr
    bare = run_bare(
        thin_python, "-m", "as_main", "--flag", cwd=outcome.directory, env=dict(path)
    )  # fmt: skip
    assert outcome.printed == json.loads(bare)


def test_what_is_pickled_by_name_reaches_spawned_processes(run_program: RunProgram) -> None:
    outcome = run_program("spawns.py")
    assert outcome.exit_code == 0, outcome.stderr
    pairs = "[Pair(first=2, second=1), Pair(first=4, second=3)]"
    assert pairs in outcome.stderr.splitlines()


def test_what_was_on_the_paths_stays_on_them(run_program: RunProgram, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.set_by_sitecustomize = 'yes'\n")
    outcome = run_program(
        "environment.py", env=(("PYTHONPATH", str(tmp_path)), ("LD_PRELOAD", HARMLESS))
    )
    assert outcome.exit_code == 0, outcome.stderr
    said = outcome.printed
    assert said["site"] == "yes", "the user's sitecustomize runs"
    assert said["site_file"] == str(tmp_path / "sitecustomize.py")
    assert said["python_path"].split(":")[-1] == str(tmp_path)
    assert said["preload"].split(":")[-1] == HARMLESS
    assert any(Path(file).name == HARMLESS for file in said["loaded"])
    assert said["visible"] == [], "torch is not imported before the program asks for it"


@pytest.mark.slow
def test_a_number_of_steps_ends_the_program_after_them(run_program: RunProgram) -> None:
    outcome = run_program("peaks.py", options=STEPS)
    assert outcome.exit_code == 0, outcome.stderr
    document = outcome.document
    assert (document["verdict"], document["exit_code"]) == ("fits", 0)
    assert [step["index"] for step in outcome.device["steps"]] == [0, 1]
    assert outcome.record.exit.kind.value == "steps_reached"
    assert "{" not in outcome.stderr, "the program prints at its end, which it did not reach"
    assert "Traceback" not in outcome.stderr


def test_the_document_is_all_that_stdout_has(run_program: RunProgram) -> None:
    outcome = run_program("peaks.py")
    assert json.loads(outcome.stdout)["schema"] == "ullage.run/1"
    assert set(outcome.printed) <= set(outcome.device), "what the program printed"
    assert outcome.stderr.splitlines()[-1].startswith("Wrote ")


@pytest.mark.slow
def test_a_run_from_python_has_the_numbers_of_the_command_line(
    run_program: RunProgram, thin_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    outcome = run_program("peaks.py", options=STEPS)
    program = [str(PROGRAMS / "peaks.py")]
    run = ullage.run(program, gpu="h100-80gb", steps=2, python=thin_python)
    document, expected = run.document, outcome.document
    for field in ("schema", "verdict", "program", "exit_code", "torch", "devices", "basis"):
        assert document[field] == expected[field], field
    assert run.verdict.value == "fits" and run.exit_code == 0
    assert run.snapshot is None, "none was asked for"
    device = expected["devices"][0]
    for name in ("requested", "allocated", "reserved", "used"):
        assert getattr(run, f"peak_{name}_bytes") == device[f"peak_{name}_bytes"]
    assert run.devices[0].headroom_bytes == device["headroom_bytes"]
    assert "fits" in run.text()


def test_outside_a_run_nothing_is_faked(thin_python: Path) -> None:
    code = "import os, torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    assert run_bare(thin_python, "-c", code, env={}).split() == ["False", "0"]
