"""One program of the wild: its run to the end, its run with --steps, and what the two say.

result = try_program(python, program)
result.is_as_expected      # it ran to its end, and --steps says the same or that it stopped early
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.wild.program import PROGRAMS, WildProgram

GPU = "rtx-3060"
STEPS = 2
TIMEOUT_S = 600
_MAX_CAUSE_CHARS = 240
_TO_ITS_END = frozenset({"fits", "out_of_memory"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one `ullage run` said: verdict, reason, peak, and the error that ended it.

    Attributes:
        is_stopped_early: whether --steps ended it before a training step, and the report says so.
    """

    verdict: str
    reason: str
    peak_bytes: int | None
    num_training_steps: int
    cause: str | None
    is_stopped_early: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A program's two runs."""

    name: str
    version: str
    torch: str
    whole: Outcome
    stopped: Outcome

    @property
    def has_run_to_its_end(self) -> bool:
        """Whether the whole program ran; out of memory is an end that a GPU would give too."""
        return self.whole.verdict in _TO_ITS_END

    @property
    def agrees(self) -> bool:
        """Whether --steps gives the verdict of the whole run, or says that it ended too early."""
        return self.stopped.verdict == self.whole.verdict or self.stopped.is_stopped_early

    @property
    def is_wrong_fit(self) -> bool:
        """Whether a run says "fits" of a program that does not fit, or of one that failed."""
        return self.stopped.verdict == "fits" and self.whole.verdict != "fits" and not self.agrees

    @property
    def is_as_expected(self) -> bool:
        """Whether nothing is to be explained."""
        return self.has_run_to_its_end and self.agrees


def try_program(python: Path, program: WildProgram, version: str) -> Result:
    """Runs a program to its end, and again with --steps, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="ullage-wild-") as directory:
        if program.prepare is not None:
            command = [str(python), str(PROGRAMS / program.prepare)]
            subprocess.run(command, cwd=directory, check=True, capture_output=True)
        whole, torch = _run(python, program, Path(directory))
        stopped, _ = _run(python, program, Path(directory), "--steps", str(STEPS))
    return Result(program.name, version, torch, whole, stopped)


def _run(python: Path, program: WildProgram, directory: Path, *options: str) -> tuple[Outcome, str]:
    """What a run says, and the version of torch."""
    command = [
        sys.executable, "-c", "from ullage.cli import main; main()", "run", "--gpu", GPU,
        "--python", str(python), "--json", "--snapshot", "snapshot.pickle",
        *options, "--", *program.words,
    ]  # fmt: skip
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Caches and settings of the libraries: nothing of another run, and nothing left behind.
        "HF_HOME": str(directory),
        "MPLCONFIGDIR": str(directory),
        "YOLO_CONFIG_DIR": str(directory),
        "YOLO_OFFLINE": "true",
        "WANDB_MODE": "disabled",
    }
    with subprocess.Popen(
        command, cwd=directory, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # of ours alone: it is a session of its own
            process.communicate()
            return Outcome("failed", f"did not end within {TIMEOUT_S} s", None, 0, "it hangs"), "-"
    if not stdout.startswith("{"):
        said = (stderr.strip().splitlines() or ["it says nothing"])[-1]
        return Outcome("failed", said, None, 0, said[:_MAX_CAUSE_CHARS]), "-"
    document = json.loads(stdout)
    return _outcome(document, stderr), str(document.get("torch") or "-").partition("+")[0]


def _outcome(document: dict[str, Any], stderr: str) -> Outcome:
    devices = document["devices"]
    steps = [step for device in devices for step in device["steps"]]
    trained = [step for step in steps if "optimizer" in step.get("phases", {})]
    verdict = str(document["verdict"])
    return Outcome(
        verdict=verdict,
        reason=" ".join(str(document.get("reason") or "").split()),
        peak_bytes=max((device["peak_allocated_bytes"] for device in devices), default=None),
        num_training_steps=len(trained),
        cause=None if verdict in _TO_ITS_END else _cause(stderr),
        is_stopped_early=(document["stopped"] or {}).get("kind") == "inference",
    )


def _cause(stderr: str) -> str:
    """The last error that the program printed: its name, its message's beginning, its line."""
    lines = stderr.splitlines()
    error = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b.*")
    place = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
    errors = [number for number, line in enumerate(lines) if error.match(line)]
    if not errors:
        return (lines or ["it says nothing"])[-1][:_MAX_CAUSE_CHARS]
    before = [place.match(line) for line in lines[: errors[-1]]]
    frame = next((match for match in reversed(before) if match is not None), None)
    where = f" ({Path(frame['file']).name}:{frame['line']})" if frame is not None else ""
    return f"{lines[errors[-1]].strip()[:_MAX_CAUSE_CHARS]}{where}"
