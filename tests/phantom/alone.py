"""Runs programs of tests/programs by themselves, not under `ullage run`: on the processor, with
real arithmetic, or in an environment that has the phantom.

They are forked where they can be (tests/phantom/forking), since no variable is set for them that
may be read before their first line.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.phantom.conftest import MAIN, environment, find_program

SOURCE = str(Path(__file__).parents[2] / "src")
TIMEOUT_S = 1800

Done = subprocess.CompletedProcess[str]


def run_alone(
    python: Path,
    *words: str,
    verb: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    directory: Path | None = None,
    timeout_s: int = TIMEOUT_S,
) -> Done:
    """Runs `guard/sweep.py` and its words, or `-m` a module, by itself or under a verb of ullage.

    Args:
        python: the interpreter.
        words: of the command.
        verb: of ullage, and its options.
        env: its environment; None: one without a GPU.
        directory: where it runs.
        timeout_s: for it to end.
    """
    return subprocess.run(
        command(python, words, verb), check=False, capture_output=True, text=True, cwd=directory,
        timeout=timeout_s, env={**(env or environment({})), "PYTHONPATH": SOURCE},
    )  # fmt: skip


def command(python: Path, words: tuple[str, ...], verb: tuple[str, ...]) -> list[str]:
    """A program and its words, under a verb of ullage where there is one."""
    program = [find_program(words[0]), *words[1:]]
    if not verb:
        return [str(python), *program]
    return [sys.executable, "-c", MAIN, *verb, "--python", str(python), "--", *program]


def printed_by(python: Path, *words: str, **more: Any) -> Any:
    """The document in the last line of what a program prints, which must end well; see above."""
    done = run_alone(python, *words, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_ranks(
    python: Path,
    *words: str,
    verb: tuple[str, ...] = (),
    num_ranks: int = 2,
    env: Mapping[str, str] | None = None,
) -> list[Done]:
    """Runs a program on several ranks, which are told so by the variables of torchrun."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    common = {
        "PYTHONPATH": SOURCE, "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(env or {}),
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            command(python, words, verb), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment({**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}),
        )
        for rank in range(num_ranks)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=TIMEOUT_S) for rank in ranks]
    return [
        subprocess.CompletedProcess(rank.args, rank.returncode, *output)
        for rank, output in zip(ranks, outputs, strict=True)
    ]
