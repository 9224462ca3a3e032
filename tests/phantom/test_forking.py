"""What the tests fork does what a fresh process does; see forking/client.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.forking import client

pytestmark = [
    pytest.mark.phantom,
    pytest.mark.skipif("ULLAGE_TEST_FRESH" in os.environ, reason="nothing is to be forked"),
]
RunProgram = Callable[..., Any]

TELL = """
import gc, json, os, sys
early = "torch" in sys.modules
if "--torch" in sys.argv:
    import torch
import __main__
frame, stack = sys._getframe(), []
while frame is not None:
    stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
    frame = frame.f_back
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": repr(sys.flags),
    "main": [getattr(__main__, name, None) for name in ("__name__", "__file__", "__package__")],
    "spec": getattr(__main__.__spec__, "origin", None), "stack": stack, "early": early,
    "torch": [type(torch.__loader__).__name__, torch.__spec__.origin] if "torch" in dir() else 0,
    "directory": os.getcwd(), "variables": dict(os.environ), "stdin": sys.stdin.read(),
    "files": sorted(os.listdir("/proc/self/fd"))[:-1],
    "streams": [[s.encoding, s.errors, s.line_buffering] for s in (sys.stdout, sys.stderr)],
    "handlers": [str(signal) for signal in map(__import__("signal").getsignal, (2, 13, 15))],
    "executable": sys.executable, "prefix": sys.prefix, "collector": gc.isenabled(),
}))
"""
ENDS = {
    "a code": "import sys; sys.exit(7)",
    "a message": "import sys; sys.exit('no more')",
    "an error": "def f():\n    raise ValueError('no data')\nf()",
    "a wrong program": "if",
    "a signal": "import os; os.kill(os.getpid(), 11)",
    "at once": "import os; print('lost'); os._exit(4)",
    "in the end": "import atexit, torch; atexit.register(print, 'last'); print('first')",
}
# Of a document: what no two runs have in common, or a forked one counts of its own pages alone.
MOMENTS = re.compile(
    r"(started_s|wall_s|pid|elapsed|seconds|_s|snapshot|host_peak_bytes|host_needed_(?:high_)?bytes)$"
)


def both(
    command: list[str], directory: Path, **options: Any
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """What came of a command that was started afresh, and of the same one forked."""
    servers = client.servers()
    assert servers, "this test is not marked fresh"
    try:
        client.install([])
        fresh = subprocess.run(command, cwd=directory, capture_output=True, text=True, **options)
    finally:
        client.install(servers)
    before = client.num_forked()
    forked = subprocess.run(command, cwd=directory, capture_output=True, text=True, **options)
    assert client.num_forked() == before + 1
    return fresh, forked


def test_the_program_of_a_run_is_forked(run_program: RunProgram, tmp_path: Path) -> None:
    """Else each run imports torch anew, and nobody sees why the tests take three times as long."""
    (tmp_path / "parent.py").write_text(
        "import json, os, torch\n"
        "with open(f'/proc/{os.getppid()}/cmdline') as file:\n"
        "    print(json.dumps(file.read().split('\\0')))\n"
    )
    for options in (
        (),
        (
            "--alloc-conf",
            "expandable_segments:True",
        ),
    ):
        told = run_program(str(tmp_path / "parent.py"), options=options).printed
        assert told[1].endswith("the program to come"), options


@pytest.mark.slow(only=("file",))
@pytest.mark.parametrize("way", ["file", "text", "module"])
def test_a_forked_process_sees_what_a_fresh_one_sees(
    thin_python: Path, tmp_path: Path, way: str
) -> None:
    (tmp_path / "tell.py").write_text(TELL, "utf-8")
    words = {"file": ["tell.py", "--torch"], "text": ["-c", TELL], "module": ["-m", "tell"]}[way]
    command = [str(thin_python), *words, "--size", "é"]
    env = dict(os.environ)  # what C code has set besides is not in it
    fresh, forked = both(command, tmp_path, input="typed", check=True, env=env)
    ours, theirs = json.loads(forked.stdout), json.loads(fresh.stdout)
    assert set(ours.pop("variables").items()) ^ set(theirs.pop("variables").items()) == set()
    assert ours == theirs
    assert forked.stderr == fresh.stderr == ""
    assert not ours["early"]


@pytest.mark.parametrize("name", ENDS)
def test_a_forked_process_ends_as_a_fresh_one_ends(
    thin_python: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "program.py").write_text(ENDS[name], "utf-8")
    fresh, forked = both([str(thin_python), "program.py"], tmp_path)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        fresh.returncode, fresh.stdout, fresh.stderr,
    )  # fmt: skip


def test_a_forked_process_hears_signals(thin_python: Path, tmp_path: Path) -> None:
    code = "import signal, time; print('ready', flush=True); time.sleep(60)"
    command = [str(thin_python), "-c", code]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert isinstance(process, client.ForkedProcess) and process.is_forked
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def without_moments(value: Any) -> Any:
    """A document without what no two runs have in common."""
    if isinstance(value, dict):
        return {k: without_moments(v) for k, v in value.items() if not MOMENTS.search(k)}
    return [without_moments(one) for one in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize("program", ["peaks.py", "fails.py", "sets_variable.py"])
def test_a_program_has_the_same_document_and_stacks_forked_and_fresh(
    run_program: RunProgram, program: str
) -> None:
    forked = run_program(program, turn=1)
    servers = client.servers()
    try:
        client.install([])
        fresh = run_program(program, turn=1)
    finally:
        client.install(servers)
    assert forked.directory != fresh.directory
    assert without_moments(forked.document) == without_moments(fresh.document)
    assert forked.exit_code == fresh.exit_code
    stacks = [
        [[event["action"], event["size"], [list(f.items()) for f in event["frames"]]]
         for trace in outcome.snapshot["device_traces"] for event in trace]
        for outcome in (forked, fresh)
        if (outcome.directory / "snapshot.pickle").exists()
    ]  # fmt: skip
    assert stacks[:1] == stacks[1:]


def test_what_is_read_at_the_start_is_not_forked(thin_python: Path) -> None:
    before = client.num_forked()
    kind = "backend:cudaMallocAsync"
    for changed in ({"OMP_NUM_THREADS": "1"}, {"PYTORCH_ALLOC_CONF": kind}):
        subprocess.run([thin_python, "-c", "1"], env={**os.environ, **changed}, check=True)
    subprocess.run([thin_python, "-I", "-c", "1"], check=True)
    assert client.num_forked() == before
