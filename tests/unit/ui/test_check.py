"""The check in the background: its lines, its end, its errors; the phantom itself is elsewhere."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from ullage.errors import SpecError
from ullage.ui import check as module
from ullage.ui.check import Check

pytest.importorskip("starlette", reason="needs the extra ullage[ui]")


FAILED = """
print("CUDA is cross", file=sys.stderr)
print(json.dumps({"document": {"verdict": "failed"}}))
"""


def run_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """The check's process is this program instead."""
    script = tmp_path / "child"
    script.write_text(f"#!{sys.executable}\nimport json, sys, time\n{program}")
    script.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(script))


async def finish(check: Check) -> None:
    for _ in range(200):
        if not check.is_running:
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("the check does not end")


def test_a_check_says_how_far_it_is_and_what_came_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_with(
        monkeypatch,
        tmp_path,
        "asked = json.load(sys.stdin)\n"
        "print(json.dumps({'progress': 'step 1'}), flush=True)\n"
        "print('x' * 10**6, file=sys.stderr)\n"
        "print(json.dumps({'document': {'verdict': 'fits', 'asked': asked}}))\n",
    )

    async def play() -> Check:
        check = Check()
        await check.start({"gpu": "l4"})
        with pytest.raises(SpecError, match="a check is running"):
            await check.start({})
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
def test_a_check_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, says: str
) -> None:
    run_with(monkeypatch, tmp_path, program)

    async def play() -> Check:
        check = Check()
        await check.start({})
        await finish(check)
        return check

    assert says in str(asyncio.run(play()).error)


def test_a_check_that_is_cancelled_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = tmp_path / "pid"
    run_with(
        monkeypatch,
        tmp_path,
        f"import os, pathlib\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)",
    )

    async def play() -> Check:
        check = Check()
        await check.start({})
        while not started.exists() or not started.read_text():
            await asyncio.sleep(0.02)
        await check.cancel()
        return check

    began = time.monotonic()
    found = asyncio.run(play())
    assert time.monotonic() - began < 20
    assert found.error == "the check was cancelled" and not found.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
