"""A process that has the phantom for a GPU and is not watched, as `ullage record` needs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ullage.ground.native.libraries import LIBRARY_DIR, PHANTOM
from ullage.ground.protocol import variables
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import check_torch, find_torch

ROOT = Path(__file__).resolve().parent.parent.parent
GPU = "h100-80gb"
MAIN = (sys.executable, "-c", "from ullage.cli import main; main()")
SNAPSHOT, LEFT = "snapshot.pickle", "left.json"


@dataclass(frozen=True, slots=True)
class Done:
    """What `ullage run` or `ullage record` left: its exit code, its document, the program's output,
    and where its snapshot is.
    """

    exit_code: int
    document: dict[str, Any]
    output: str
    snapshot: Path


def bare_environment(python: Path) -> dict[str, str]:
    """The environment in which the phantom is the GPU of an interpreter's torch."""
    build = check_torch(find_torch(str(python)), LIBRARY_DIR)
    return os.environ | {
        variables.PHANTOM: "1",
        variables.RECORD: "0",
        variables.DEVICE: choose_device(GPU).environment_text(),
        variables.LIBRARIES: build.libraries_text(),
        "LD_PRELOAD": ":".join(map(str, [PHANTOM, *build.preloaded(LIBRARY_DIR)])),
        "LD_LIBRARY_PATH": str(LIBRARY_DIR),
    }


def watch(
    verb: str,
    python: Path,
    program: Sequence[str],
    directory: Path,
    options: Sequence[str] = (),
    timeout_s: float | None = None,
) -> Done:
    """Runs a program under `ullage run` on the phantom, or under `ullage record` beside it; where
    the directory has what that left, it is read.

    Raises:
        SystemExit: there was no document.
        subprocess.TimeoutExpired: the program did not end in time, and was ended.
    """
    directory.mkdir(parents=True, exist_ok=True)
    left = directory / LEFT
    if left.exists():
        code, document, output = json.loads(left.read_text(encoding="utf-8"))
        return Done(code, document, output, directory / SNAPSHOT)
    is_recorded = verb == "record"
    environment = bare_environment(python) if is_recorded else dict(os.environ)
    environment["XDG_RUNTIME_DIR"] = str(directory)
    where = () if is_recorded else ("--gpu", GPU)
    snapshot = directory / SNAPSHOT
    command = [
        *MAIN, verb, "--json", "--python", str(python), "--snapshot", str(snapshot),
        *where, *options, "--", *program,
    ]  # fmt: skip
    snapshot.unlink(missing_ok=True)
    with subprocess.Popen(
        command, cwd=directory, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # A program within C++ code hears no other signal.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if not stdout:
        raise SystemExit(f"{verb} of {program} gave no document:\n{stderr[-2000:]}")
    document = json.loads(stdout)
    left.write_text(json.dumps([process.returncode, document, stderr]), encoding="utf-8")
    return Done(process.returncode, document, stderr, snapshot)
