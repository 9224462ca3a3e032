"""One whole `ullage check --no-cache` of a program that did not change, by its command line.

repetition = repeat(project / "ullage.toml", python)
repetition.exit_code, repetition.added, repetition.wall_s
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAIN = "from ullage.cli import main; main()"
_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_used_bytes")


@dataclass(frozen=True, slots=True)
class Repetition:
    """What a check came to.

    Attributes:
        exit_code: 0 where it passed.
        added: bytes more allocated, reserved and used than were locked; None if the program failed.
        program_s: from the program's start to its end.
        wall_s: from the start of `ullage check` to its end.
        cpu_s: processor time of both.
    """

    exit_code: int
    added: tuple[int, ...] | None
    program_s: float
    wall_s: float
    cpu_s: float


def repeat(config: Path, python: Path) -> Repetition:
    """Checks the one scenario of a configuration that is locked; it runs, whatever is known.

    Raises:
        RuntimeError: the check gave no document.
    """
    began_s, began_cpu_s = time.monotonic(), _children_cpu_s()
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, "check", "--no-cache", "--json", "--config", str(config),
         "--python", str(python)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall_s, cpu_s = time.monotonic() - began_s, _children_cpu_s() - began_cpu_s
    try:
        (scenario,) = json.loads(done.stdout)["scenarios"]
    except ValueError:
        raise RuntimeError(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}") from None
    return Repetition(
        done.returncode, _added(scenario["devices"]), scenario["wall_s"], wall_s, cpu_s
    )


def _added(devices: Sequence[Mapping[str, Any]]) -> tuple[int, ...] | None:
    for device in devices:
        return tuple(device["found"][name] - device["locked"][name] for name in _PEAKS)
    return None


def render_repetitions(repeated: Sequence[Repetition]) -> str:
    """How many there were, what they took and how they ended, in two or three lines."""
    if not repeated:
        return "none."
    program_s, wall_s, cpu_s = (
        sum(getattr(one, name) for one in repeated) / len(repeated)
        for name in ("program_s", "wall_s", "cpu_s")
    )
    endings = Counter((one.exit_code, one.added) for one in repeated)
    told = "; ".join(
        f"{count} exited with {code}, {_tell(added)}"
        for (code, added), count in endings.most_common()
    )
    return (
        f"{len(repeated)}, {wall_s:.1f} s each, of which the program {program_s:.1f} s;\n"
        f"  {cpu_s:.1f} s of processor time. {told}."
    )


def _tell(added: Sequence[int] | None) -> str:
    if added is None:
        return "without figures"
    if not any(added):
        return "with the same bytes allocated, reserved and used"
    return "allocated {:+}, reserved {:+}, used {:+} bytes".format(*added)


def _children_cpu_s() -> float:
    """Processor time of the processes that have ended below this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
