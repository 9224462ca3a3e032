"""Whatever happens around a run, nothing is lost, overwritten, half written or left behind.

The programs here write a record of made-up figures themselves, in the place of a torch that does
it: what is tested is what `ullage run` does with it.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Place = Any
Start = Callable[..., subprocess.Popen[str]]

MAIN = "from ullage.cli import main; main()"
TIMEOUT_S = 60
RECORDS = """
import os, pathlib, pickle, shutil, signal, subprocess, sys, time

def write(number=0, rank=None, snapshot=True):
    pid = os.getpid() + number
    device = dict.fromkeys(
        ["index", "total_bytes", "context_bytes", "non_torch_bytes", "peak_requested_bytes",
         "peak_allocated_bytes", "peak_reserved_bytes", "num_allocs", "num_segments", "num_ooms",
         "num_alloc_retries"], 0)
    record = {
        "schema": "ullage.record/1", "ullage": "0", "torch": "2.15.0", "cuda": "13.2",
        "python": "3", "argv": [], "pid": pid, "rank": rank, "started_s": 0.0, "ended_s": 1.0,
        "exit": {"kind": "returned", "exception": None, "message": None, "where": None, "code": 0},
        "devices": [device | {"name": "made up", "total_bytes": 1 << 36}], "first_position": 0,
        "events": dict.fromkeys(["address", "bytes", "reserved", "device", "kind"], b""),
    }
    path = pathlib.Path(os.environ["ULLAGE_RUN_DIR"], f"{pid}.record")
    path.write_bytes(pickle.dumps(record))
    if snapshot:
        whole = pickle.dumps({"segments": [], "ullage": record})
        path.with_suffix(".snapshot.pickle").write_bytes(whole)
"""
READY = "print('ready', flush=True); time.sleep(60)"


def strays(place: Place) -> list[str]:
    """The processes that run with the place's temporary directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if str(place.temporary).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def wait_until_gone(place: Place) -> None:
    """Fails where a process is still there after a while."""
    limit_s = time.monotonic() + 10
    while strays(place) and time.monotonic() < limit_s:
        time.sleep(0.02)
    assert strays(place) == []


def names(place: Place) -> set[str]:
    """The files of the directory that the test did not put there."""
    return {path.name for path in place.directory.iterdir()} - {"train.py", "records.py"}


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    """`start(code, *options)`: `ullage run OPTIONS -- records.py`, which does as the code says."""
    started = []

    def start(code: str, *options: str, **named: Any) -> subprocess.Popen[str]:
        program = place.directory / "records.py"
        if not program.exists() or program.read_text() != RECORDS + code:
            program.write_text(RECORDS + code)  # another run may be about to read it
        words = ("run", "--python", str(place.python), *options, "--", "records.py")
        process = place.start(*words, **named)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, stdout, stderr


def check_many_at_once(place: Place, start: Start, count: int) -> None:
    ends = [end(process) for process in [start("write()") for _ in range(count)]]
    assert {code for code, _, _ in ends} == {0}, ends
    written = [stdout.splitlines()[-1].removeprefix("Wrote ") for _, stdout, _ in ends]
    assert len(set(written)) == count
    assert names(place) == set(written)
    pids = [
        pickle.loads((place.directory / name).read_bytes())["ullage"]["pid"] for name in written
    ]
    assert len(set(pids)) == count
    assert not list(place.temporary.iterdir())


@pytest.mark.slow
def test_runs_at_once_in_one_folder_lose_nothing(place: Place, start: Start) -> None:
    check_many_at_once(place, start, 12)


@pytest.mark.nightly
def test_a_hundred_runs_at_once_in_one_folder_lose_nothing(place: Place, start: Start) -> None:
    check_many_at_once(place, start, 100)


def test_what_appears_while_the_program_runs_is_not_overwritten(place: Place, start: Start) -> None:
    code = "write()\nfor name in ('s.pickle', 'd.json'): pathlib.Path(name).write_text('mine')"
    exit_code, stdout, stderr = end(start(code, "--snapshot", "s.pickle", "-o", "d.json"))
    assert exit_code == 2
    assert "'s.pickle' was made by another while this ran" in stderr
    assert "'d.json' was made by another while this ran" in stderr
    assert stdout.splitlines()[-2:] == ["Wrote s-2.pickle", "Wrote d-2.json"]
    assert names(place) == {"s.pickle", "d.json", "s-2.pickle", "d-2.json"}
    assert (place.directory / "s.pickle").read_text() == "mine"
    assert json.loads((place.directory / "d-2.json").read_text())["snapshot"] == "s-2.pickle"


def test_the_snapshots_of_further_processes_overwrite_none(place: Place, start: Start) -> None:
    earlier = place.directory / "s-rank1.pickle"
    earlier.write_text("mine")
    code = "write(rank=0); write(1, rank=1); write(2, rank=1)"
    exit_code, stdout, stderr = end(start(code, "--snapshot", "s.pickle"))
    assert exit_code == 0, stderr
    expected = ["s.pickle", "s-rank1-2.pickle", "s-rank1-3.pickle"]
    assert stdout.splitlines()[-3:] == [f"Wrote {name}" for name in expected]
    assert earlier.read_text() == "mine"
    assert not list(place.temporary.iterdir())


def test_what_cannot_be_written_in_the_end_is_told_beside_the_report(
    place: Place, start: Start
) -> None:
    code = "write(); shutil.rmtree(os.getcwd())"
    exit_code, stdout, stderr = end(start(code, "--snapshot", "s.pickle", "-o", "d.json"))
    assert exit_code == 2
    assert "needs up to" in stdout and "Wrote" not in stdout
    assert stderr.splitlines() == [
        "ullage: the snapshot 's.pickle' could not be written: No such file or directory",
        "ullage: 'd.json' could not be written: No such file or directory",
    ]
    assert not list(place.temporary.iterdir())


def test_a_snapshot_that_a_process_could_not_write_is_told(place: Place, start: Start) -> None:
    mark = "pathlib.Path(os.environ['ULLAGE_RUN_DIR'], f'{os.getpid()}.begun')"
    code = f"write(snapshot=False); {mark}.write_text('OSError: the disk is full')"
    exit_code, stdout, stderr = end(start(code, "--json"))
    assert exit_code == 2
    assert "could not be written: OSError: the disk is full" in stderr
    assert json.loads(stdout)["warnings"][0].endswith("OSError: the disk is full")


def test_a_full_disk_at_stdout_is_told(place: Place, start: Start) -> None:
    with Path("/dev/full").open("w") as full:
        code, _, stderr = end(start("write()", "-o", "d.json", options={"stdout": full}))
    assert code == 2
    assert stderr == "ullage: the result could not be printed: No space left on device\n"
    assert json.loads((place.directory / "d.json").read_text())["verdict"] == "fits"
    with Path("/dev/full").open("w") as full:
        code, _, stderr = end(place.start("gpus", options={"stdout": full}))
    assert (code, stderr.count("\n")) == (2, 1) and "No space left" in stderr


def test_a_page_on_a_full_disk_is_told_by_its_name(place: Place, start: Start) -> None:
    (place.directory / "page.html").symlink_to("/dev/full")
    code, _, stderr = end(start("write()", "-o", "page.html", "--snapshot", "s.pickle"))
    assert code == 2
    assert "ullage: 'page.html' could not be written: " in stderr


def test_a_name_of_many_letters_loses_nothing(place: Place, start: Start) -> None:
    name = f"{'ü' * 120}.py"
    (place.directory / name).write_text(RECORDS + "write()")
    words = ("run", "--python", str(place.python), "--", name)
    code, stdout, stderr = end(place.start(*words, LC_ALL="C", PYTHONUTF8="0", COLUMNS="20"))
    assert code == 0, stderr
    assert "Wrote ullage-" in stdout and len(list(place.directory.glob("*.pickle"))) == 1


def test_a_scenario_that_does_not_end_fails_after_its_time(place: Place, start: Start) -> None:
    (place.directory / "records.py").write_text(RECORDS + "time.sleep(600)")
    (place.directory / "ullage.toml").write_text(
        '[scenario.endless]\ncommand = "records.py"\ntimeout = "2s"\n'
    )
    code, stdout, stderr = end(place.start("check", "--python", str(place.python)))
    assert code == 3, stderr
    assert "had not come to its end after 2 s" in " ".join(stdout.split())
    wait_until_gone(place)


def test_a_reader_that_leaves_changes_no_exit_code(start: Start) -> None:
    read, write = os.pipe()
    os.close(read)
    process = start("write(); sys.exit(5)", options={"stdout": write})
    os.close(write)
    code, _, stderr = end(process)
    assert (code, stderr) == (3, "")


def test_closed_streams_end_nothing(place: Place, start: Start) -> None:
    close = "import os, sys; os.closerange(0, 3); "
    again = f"os.execv(sys.executable, [sys.executable, '-c', {MAIN!r}, *sys.argv[1:]])"
    code, stdout, stderr = end(start("write()", "-o", "d.json", main=close + again))
    assert (code, stdout, stderr) == (0, "", "")
    assert json.loads((place.directory / "d.json").read_text())["verdict"] == "fits"


def test_a_device_or_a_pipe_is_written_into(place: Place, start: Start) -> None:
    code, stdout, stderr = end(start("write()", "-o", "/dev/stderr", "--snapshot", "/dev/null"))
    assert code == 0, stderr
    assert json.loads(stderr)["snapshot"] == "/dev/null"
    assert stdout.splitlines()[-2:] == ["Wrote /dev/null", "Wrote /dev/stderr"]
    assert Path("/dev/null").is_char_device()


def test_without_a_temporary_directory_nothing_starts(place: Place, start: Start) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    code, stdout, stderr = end(start("write()", main=limit + MAIN))
    assert (code, stdout) == (2, "")
    assert stderr.startswith("ullage: no temporary directory can be made (")
    assert "set TMPDIR to a directory that can be written to" in stderr
    assert names(place) == set()


# What `ullage run` calls at one moment, and how often it gets the signal there.
MOMENTS = {
    "looking for torch": "ullage.search.runs.job.find_torch",
    "making the environment": "ullage.search.runs.one.make_environment",
    "explaining": "ullage.explain.run.explain_run",
    "writing": "ullage.ground.files.os.link",
    "printing": "ullage.answers.text.print_blocks",
    "tidying up": "shutil.rmtree",
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_of_ullage_leaves_nothing(
    place: Place, start: Start, moment: str, number: int
) -> None:
    owner, _, name = MOMENTS[moment].rpartition(".")
    module = owner.removesuffix(".os")
    disturb = f"""
import os, {module}
real = {owner}.{name}
def disturbed(*arguments, **named):
    for _ in range(2):
        os.kill(os.getpid(), {int(number)})
    return real(*arguments, **named)
{owner}.{name} = disturbed
{MAIN}
"""
    code, stdout, stderr = end(start("write()", "-o", "d.json", main=disturb))
    assert code == 130
    assert stderr.strip() == "ullage: interrupted" and "Traceback" not in stdout
    kept = names(place)
    assert not [name for name in kept if name.startswith(".")]
    for name in kept:
        text = (place.directory / name).read_bytes()
        assert json.loads(text) if name == "d.json" else pickle.loads(text)
    assert not list(place.temporary.iterdir())
    wait_until_gone(place)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_asked_to_stop_is_interrupted(
    place: Place, start: Start, number: int
) -> None:
    process = start("signal.signal(2, signal.SIG_DFL)\n" + READY)
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    exit_code, stdout, _ = end(process)
    assert exit_code == 130
    assert stdout.splitlines()[1] == "failed: interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_ignores_signals_is_ended_by_the_third(
    place: Place, start: Start, number: int
) -> None:
    code = "for n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
    process = start(code + READY)
    assert process.stdout and process.stdout.readline() == "ready\n"
    for _ in range(3):
        process.send_signal(number)
        time.sleep(0.3)  # two that come at once are one
    exit_code, stdout, _ = end(process)
    assert exit_code == 130
    assert "failed: interrupted" in stdout
    assert not list(place.temporary.iterdir())


def test_a_program_does_not_outlive_a_killed_ullage(place: Place, start: Start) -> None:
    process = start(READY)
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    wait_until_gone(place)


def test_what_a_program_leaves_running_is_ended_and_told(place: Place, start: Start) -> None:
    code = "write(); subprocess.Popen(['sleep', '600'], start_new_session=True)"
    exit_code, stdout, stderr = end(start(code))
    assert exit_code == 0, stderr
    assert "(sleep 600) running; it was ended" in stdout
    assert strays(place) == []


def test_a_program_that_goes_on_in_the_background_is_not_said_to_fit(
    place: Place, start: Start
) -> None:
    code = "if os.fork(): os._exit(0)\nos.setsid()\n"
    exit_code, stdout, _ = end(start(code + READY))
    assert exit_code == 3
    assert "failed: the program ended before the processes that it had started" in stdout
    used = "signal.signal(15, lambda *_: (write(), os._exit(0)))\n"
    exit_code, stdout, _ = end(start(code + used + READY, "--json"))
    assert exit_code == 3
    assert "was still using the GPU" in json.loads(stdout)["reason"]
    assert strays(place) == []


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_a_random_moment_leaves_nothing(
    place: Place, start: Start, number: int
) -> None:
    chosen = random.Random(int(number))
    for _ in range(60):
        process = start("time.sleep(0.2); write()", "-o", "d.json")
        time.sleep(chosen.uniform(0.1, 0.9))
        process.send_signal(number)
        code, _, stderr = end(process)
        # Python itself is not up yet, or already at its end.
        assert code in {0, 3, 130, -number}, stderr
        wait_until_gone(place)
        for name in names(place):
            if number == signal.SIGKILL and name.startswith("."):
                continue  # nothing can tidy up after that
            text = (place.directory / name).read_bytes()
            assert json.loads(text) if name == "d.json" else pickle.loads(text)
            (place.directory / name).unlink()
        if number != signal.SIGKILL:
            assert not list(place.temporary.iterdir())
        shutil.rmtree(place.temporary)
        place.temporary.mkdir()
