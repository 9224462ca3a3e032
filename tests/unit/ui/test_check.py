"""The check in the background: its lines, its end, its errors; the engines are elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from ullage.ground.errors import SpecError
from ullage.verbs.ui import check as module
from ullage.verbs.ui.check import Check

pytest.importorskip("starlette", reason="needs the extra ullage[ui]")


FAILED = """
print("CUDA is cross", file=sys.stderr)
print(json.dumps({"document": {"verdict": "failed"}}))
"""


def command_of(program: str) -> list[str]:
    """The check's process is this program."""
    return [sys.executable, "-c", f"import json, sys, time\n{program}"]


async def finish(check: Check) -> None:
    for _ in range(200):
        if not check.is_running:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("the check does not end")


def test_a_check_says_how_far_it_is_and_what_came_out() -> None:
    command = command_of(
        "asked = json.load(sys.stdin)\n"
        "print(json.dumps({'progress': 'step 1'}), flush=True)\n"
        "print('x' * 10**6, file=sys.stderr)\n"
        "print(json.dumps({'document': {'verdict': 'fits', 'asked': asked}}))\n",
    )

    async def play() -> Check:
        check = Check()
        await check.start(command, {"gpu": "l4"})
        with pytest.raises(SpecError, match="a check is running"):
            await check.start(command, {})
        await finish(check)
        return check

    found = asyncio.run(play()).state
    assert found["document"]["asked"] == {"gpu": "l4"} and found["progress"] == "step 1"
    assert found["error"] is None and found["running"] is False


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("print(json.dumps({'error': 'no torch'}))", "no torch"),
        ("sys.exit('it fell over')", "it fell over"),
        (FAILED, "CUDA is cross"),
    ],
)
def test_a_check_that_fails_says_why(program: str, says: str) -> None:
    async def play() -> Check:
        check = Check()
        await check.start(command_of(program), {})
        await finish(check)
        return check

    assert says in str(asyncio.run(play()).error)


STUBBORN = """
import os, pathlib, signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({path!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
time.sleep(60)
"""


def is_there(number: int) -> bool:
    """Whether a process is there, and has not ended."""
    try:
        return "Z" not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends_soon(number: int) -> bool:
    """Whether a process is over; who was killed may be seen for a moment more."""
    for _ in range(200):
        if not is_there(number):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", ["cancelled", "too long", "over"])
def test_nothing_of_a_check_stays_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    path = tmp_path / "numbers"
    program = STUBBORN.format(path=str(path))
    if how == "over":
        program = program.removesuffix("time.sleep(60)\n") + "print(json.dumps({'error': 'no'}))"

    async def play() -> Check:
        check = Check()
        limit_s = 3.0 if how == "too long" else 60.0
        await check.start(command_of(program), {}, scratch=tmp_path, time_limit_s=limit_s)
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.02)
        if how == "cancelled":
            await check.cancel()
        await finish(check)
        return check

    found = asyncio.run(play())
    said = {"cancelled": "was cancelled", "too long": "no result after 3 s", "over": "no"}
    assert said[how] in str(found.error) and not found.is_running
    assert all(ends_soon(number) for number in map(int, path.read_text().split()))


def test_an_interpreter_that_is_not_there_is_told() -> None:
    with pytest.raises(SpecError, match="cannot be started: No such file"):
        asyncio.run(Check().start(["/nowhere/python"], {}))
