"""A launcher of ranks, such as torchrun or `accelerate launch`, where one rank is played alone:
what it would start, and what it would set in the environment.

    ((program, variables),) = ranks_of([job.program], environment)
    program.arguments, variables        # train.py, {"ACCELERATE_USE_FSDP": "true", ...}

The launcher itself is queried (ground/programs/launcher_query.py), so that its configuration files
and options count.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ullage.ground.errors import SpecError
from ullage.ground.programs import program_path
from ullage.players.phantom.launch import SITE_DIR
from ullage.players.phantom.program import UserProgram

_QUERY = program_path("launcher_query")
_PATIENCE_S = 300.0
_TAIL = 3
# Launchers that end in torch.distributed.run, as commands and as modules.
_KNOWN = {"torchrun", "accelerate", "torch.distributed.run", "accelerate.commands.launch"}
_OTHERS = {"deepspeed", "mpirun"}


# A program, and what is set in its environment.
Started = tuple[UserProgram, dict[str, str]]


def launcher_of(program: Sequence[str]) -> str | None:
    """The launcher that the words of a program begin with; None: they begin with the program.

    Raises:
        SpecError: it is one that cannot be asked.
    """
    words = list(program)[1:2] if program and program[0] == "-m" else list(program)[:1]
    name = Path(words[0]).name if words else ""
    if name in _OTHERS:
        raise SpecError(
            f"{name} starts the ranks of a job itself; give it --gpus N instead, or the script "
            "alone to play one rank"
        )
    return name if name in _KNOWN else None


def ranks_of(
    launched: Sequence[UserProgram], environment: Mapping[str, str]
) -> list[Started | str]:
    """For each of several launchers of one interpreter the program that it would start, and what it
    would set in the environment; or why it starts none.

    Args:
        launched: the launchers with their words.
        environment: the variables of the query's process, which is on the phantom.

    Raises:
        SpecError: they do not answer.
    """
    first = launched[0]
    name = Path(first.argv[0] if first.argv[0] != "-m" else first.argv[1]).name
    try:
        done = subprocess.run(
            [first.python, str(_QUERY)],
            input=json.dumps([program.arguments for program in launched]),
            env={**environment, "PYTHONPATH": _not_ours(environment)}, cwd=first.directory,
            capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SpecError(
            f"{name} did not get to starting ranks in {_PATIENCE_S:.0f} s; give the script alone "
            "to play one rank"
        ) from None
    if done.returncode:
        last_lines = "; ".join(done.stderr.strip().splitlines()[-_TAIL:])
        raise SpecError(f"{name} does not say which ranks it starts: {last_lines}")
    answers = json.loads(done.stdout.splitlines()[-1])
    return [_read(program, answer, name) for program, answer in zip(launched, answers, strict=True)]


def _not_ours(environment: Mapping[str, str]) -> str:
    """The module path without ullage's directory, so that nothing of the launcher is recorded."""
    listed = environment.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(entry for entry in listed if entry != str(SITE_DIR))


def _read(launched: UserProgram, answer: Mapping[str, Any], name: str) -> Started | str:
    if "failure" in answer:
        return f"{name} starts no ranks: {answer['failure']}"
    if not answer["is_python"]:
        return f"{name} was given --no_python; give a Python script"
    return replace(launched, arguments=tuple(answer["program"])), answer["variables"]
